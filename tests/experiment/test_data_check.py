"""`endx check` and `endx_jax.check`: each finding is in the page, and only where it is true."""

import json

import numpy as np
import pytest
from helpers import write_files
from refusals import check_refusal
from tiny_bert import vocabulary, write_tokenizer

import endx_jax
from endx_jax.data.settings import DataSettings
from endx_jax.experiment.data_check import check_data


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A folder of token vectors with the tiny BERT's tokenizer: quick to compile for any length of texts."""
    folder, vectors = tmp_path_factory.mktemp("vectors"), np.random.default_rng(0).normal(size=(len(vocabulary()), 4))
    tensors = {"embeddings": vectors.astype(np.float32)}
    write_files(folder, {"config.json": {"model_type": "model2vec"}, "model.safetensors": tensors})
    write_tokenizer(folder)
    return folder


def pairs(count=40):
    return [(f"where is cat {n}", f"cat {n} sat on mat {n}") for n in range(count)]


def write(folder, rows, header="question,answer", name="pairs.csv"):
    file = folder / name
    file.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return file


def test_findings_about_rows_columns_and_texts(tmp_path, model):
    rows = [f"{question},{answer},a{n},1,{n % 3},\x1b[2J" for n, (question, answer) in enumerate(pairs())]
    rows += [rows[0], f"{rows[1].partition(',a1,')[0]},a40,0,0,\x1b[2J"]  # repeated; right above, and wrong here
    rows += ["Where is CAT 2?,where is cat 3,a41,1,0,\x1b[2J", "same,same,a42,1,1,\x1b[2J"]
    rows += [f"{'long ' * 30},cat 3 sat on mat 3,a43,1,1,\x1b[2J"]
    file = write(tmp_path, rows, "question,answer,key,label,kind,state")
    checked = endx_jax.check(file, model=model)
    assert r"- column 'state' is not used (values \x1b[2J)" in str(checked)
    assert [*checked.findings] == [
        "rows that repeat the question and answer of another row: 1",
        "answers that are right in one row and wrong in another, and count as right: 1",
        "column 'key' is not used (it looks like ids)",
        "column 'kind' is not used (values 0, 1 and 2)",
        "column 'state' is not used (values \x1b[2J)",
        "pairs with the same text on both sides: 1",
        "texts that are a question in one row and an answer in another: 1",
        "questions that differ from another one in case, punctuation or spaces only: 1",
        "answers with several questions, which stay in one split: 1",
        "questions longer than 64 tokens, which are cut (data.question_length): 1",
    ]


def test_a_clean_file_has_no_findings_and_its_figures_are_those_of_an_evaluation(model, tmp_path, endx):
    file = write(tmp_path, map(",".join, pairs()))
    checked, given = endx_jax.check(pairs(), model=model), {"model.pretrained": str(model)}
    assert checked.findings == ()
    assert repr(checked).splitlines()[-1] == f"next: endx_jax.train(pairs, settings={given})"
    endx("evaluate", "--model", model, "--data", file, "--output", tmp_path / "out")
    systems = json.loads((tmp_path / "out" / "results.json").read_text())["systems"]
    assert checked.metrics["bm25"] == pytest.approx(systems["bm25"])
    assert checked.metrics["untrained"] == pytest.approx(systems[model.name])
    assert checked.metrics["untrained hybrid"] == pytest.approx(systems["hybrid"])


def test_a_column_of_labels_is_named_once(model, tmp_path, caplog):
    rows = [f"{question},{answer},{n % 2}" for n, (question, answer) in enumerate(pairs())]
    file = write(tmp_path, rows, "question,answer,ok")
    endx_jax.check(file, model=model)
    assert caplog.text.count("only 0 and 1") == 1


def test_damaged_cells_are_counted_and_empty_values_are_not_shown(model, tmp_path):
    cells = ["#REF!", "#N/A", "G\ufffdste", "fÃ¼r alle", "â€œquotedâ€\x9d", "nu\0ll", "Gäste für «São»", "<p>#N/A"]
    rows = [f"what of {n},{cell}{',' + str(n % 2) if n < 2 else ','},\n" for n, cell in enumerate(cells)]
    checked = endx_jax.check(write(tmp_path, rows, "question,answer,kind,none"), model=model)
    assert [*checked.findings][:7] == [
        "column 'kind' is not used (values 0 and 1): rename it to label, if 0 marks wrong answers",
        "column 'none' is not used (values empty)",
        "texts that are an error value of a spreadsheet, such as '#REF!': 2",
        "texts with U+FFFD in place of lost letters, such as 'G\ufffdste': 1",
        "texts with NUL characters, such as 'nu\\x00ll': 1",
        "texts that begin with tags of HTML, such as '<p>#N/A': 1",
        "texts in UTF-8 that were read in another encoding, such as 'fÃ¼r alle': 2",
    ]


def test_the_findings_are_reported_if_the_data_can_not_be_split(model):
    facts = [f"fact {n} holds" for n in range(12)]
    checked = endx_jax.check(
        [{"question": f"q {n}", "answer": [facts[n], facts[n - 1]]} for n in range(12)], model=model
    )
    first, *others = checked.findings
    assert first.startswith("training ends with an error: none of the 12 questions fell into validation")
    assert others == [
        "answers with several questions, which stay in one split: 12",
        "questions with several answers: 12",
    ]
    assert (checked.counts["train"], checked.counts["test"]) == (12, 0)


def test_leaks_of_given_test_data_are_found(model, tmp_path):
    train, test = pairs(), [("Where is cat 3 ?", "cat 3 sat on mat 3"), ("who", "nobody")]
    train, test = [*train, ("क्या दिन", "दिन")], [*test, ("क्या दान", "दान")]  # vowel signs are no punctuation
    found = endx_jax.check(train, test, model=model).findings
    assert found == (
        "test questions that are in the training data, apart from case, punctuation and spaces: 1",
        "right answers of test questions that are in the training data, apart from case, punctuation and spaces: 1",
    )


def test_data_in_memory_have_the_names_of_the_arguments(model, tmp_path):
    for data, name in (
        (([*pairs(), ("q", "")],), "pairs[40]"),
        ((pairs(), [("who", "a cat"), ("q", "")]), "test[1]"),
        ((pairs(), []), "test is empty"),
    ):
        check_refusal(lambda data=data: endx_jax.check(*data, model=model), name)
    rows = [{"q": question, "a": answer} for question, answer in pairs()]
    columns = {"question_column": "q", "answer_column": "a"}
    given = {f"data.{name}": column for name, column in columns.items()} | {"model.pretrained": str(model)}
    checked = endx_jax.check(rows, rows[:1], model=model, **columns)
    assert checked.next == f"endx_jax.train(pairs, settings={given})"
    file = write(tmp_path, map(",".join, pairs(120)))
    assert "test_path" not in endx_jax.check(file, pairs()[:1], model=model).next


def test_the_next_command_reads_the_same_columns_and_names_a_model_of_the_language(tmp_path, model):
    rows = ["Wie kann ich mein Passwort zurücksetzen?,Öffnen Sie die Einstellungen und klicken Sie darauf."]
    rows += ["Wo finde ich meine Rechnung?,Sie finden die Rechnung unter Ihrem Konto und in der Nachricht."]
    file = write(tmp_path, rows, "q_de,a_de", "f a q.csv")
    columns = {"question_column": "q_de", "answer_column": "a_de"}
    needs_no_prompt = "sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2"
    serve = f"endx serve --model={needs_no_prompt} '--corpus={file}' --question-column=q_de --text-column=a_de"
    assert endx_jax.check(file, model=model, **columns).next == serve
    (tmp_path / "splits").mkdir()
    for split in ("train", "dev"):
        write(tmp_path / "splits", map(",".join, pairs()), name=f"{split}.csv")
    assert endx_jax.check(tmp_path / "splits", model=model).next.endswith("/splits --split=train")
    write(tmp_path, [*rows, "Leer?,"], "q_de,a_de", file.name)
    settings = DataSettings(path=str(file), skip_invalid=True, **columns)  # `endx serve` has no such flag
    train = check_data(settings, model, default=needs_no_prompt).next
    flags = "--config.data.question_column=q_de --config.data.answer_column=a_de"
    assert train.endswith(f" {flags} --config.data.skip_invalid=True")


def test_the_command_prints_the_page(tmp_path, model, endx):
    file = write(tmp_path, map(",".join, pairs()))
    printed = endx("check", file, "--model", model).out
    assert printed.startswith(f"{file}: 40 questions, 40 answers, 40 pairs\n")
    assert printed.rstrip().splitlines()[-1] == f"next: endx serve --model={model} --corpus={file}"
    assert "question_column" in endx("check", write(tmp_path, ["a,b"], "x,y", "other.csv"), status=2).err
