import argparse
import contextlib
import io
import json
import shutil

import pytest
from helpers import raising, written
from small_beir import write_beir
from small_squad import write_squad

import endx_jax
from endx_jax.cli import evaluate
from endx_jax.cli.entry import run_verb
from endx_jax.index.corpus_encoding import encode_corpus
from endx_jax.index.index import Index


def test_without_data_it_repeats_the_runs_own_evaluation(trained_workdir, tmp_path, endx):
    printed = endx("evaluate", f"--workdir={trained_workdir}", f"--output={tmp_path}").out
    again = json.loads((tmp_path / "results.json").read_text())["systems"]
    first = json.loads((trained_workdir / "results.json").read_text())["systems"]
    for system in ("bm25", "trained", "hybrid"):
        assert again[system] == pytest.approx(first[system], abs=1e-6)
    assert "other data" not in printed
    files = sorted(trained_workdir.rglob("*"))
    results = endx_jax.evaluate(workdir=trained_workdir)
    assert f"\n\n{results!r}\nresults are in" in printed
    assert sorted(trained_workdir.rglob("*")) == files  # nothing is written without an output


def test_data_that_has_changed_since_the_run_is_named(trained_workdir, tmp_path, endx):
    workdir = shutil.copytree(trained_workdir, tmp_path / "run")
    begun = json.loads((workdir / "data.json").read_text())
    written(workdir / "data.json", json.dumps(begun | {"evaluated": {"test set": "of a shorter file"}}))
    assert "the run began with other data" in endx("evaluate", f"--workdir={workdir}").out


def test_other_data_with_a_pretrained_model_and_questions_that_share_an_answer_apart(tiny_bert, tmp_path, endx):
    data, out = written(tmp_path / "mine.tsv", "q\ta\nis it a cat\tyes\nis it a dog\tyes\nwho\tno\n"), tmp_path / "out"
    arguments = ["--model", tiny_bert, "--data", data, "--question-column=q", "--answer-column=a", "--output", out]
    endx("evaluate", *arguments, "--min-questions", "2", "9")
    results = json.loads((out / "results.json").read_text())
    assert list(results["systems"]) == ["bm25", tiny_bert.name, "hybrid"]
    counts = {entry["pool"]: (entry["questions"], entry["candidates"]) for entry in results["evaluations"]}
    assert counts == {"all": (3, 2), "answers>=2": (2, 2), "answers>=2-alone": (2, 1)}
    assert len((out / "answers-at-least-2" / "bm25.per_question.jsonl").read_text().splitlines()) == 2
    snapshot, identity = Index(out / "index.sqlite").snapshot, endx_jax.load(tiny_bert).identity
    assert [document.text for _, document in snapshot] == ["yes", "no"]
    assert snapshot.info.model == {"name": str(tiny_bert), "identity": identity, "product_dtype": "float32"}
    assert (out / "bm25.run.trec").read_text().split()[:2] == ["q0", "Q0"]


def test_a_file_called_test_leaves_the_runs_own_rankings(trained_workdir, tmp_path, endx):
    workdir = shutil.copytree(trained_workdir, tmp_path / "run")
    own = {file: file.read_bytes() for file in (workdir / "evaluation" / "test").rglob("*")}
    data = written(tmp_path / "test.csv", "question,answer\nwho,a cat\n")
    endx("evaluate", f"--workdir={workdir}", f"--data={data}")
    assert {file: file.read_bytes() for file in (workdir / "evaluation" / "test").rglob("*")} == own
    assert (workdir / "evaluation" / "test-data" / "results.json").exists()


def test_other_data_is_read_by_the_settings_of_the_run(trained_workdir, tmp_path, endx):
    workdir = shutil.copytree(trained_workdir, tmp_path / "run")
    config = json.loads((workdir / "config.json").read_text())
    config["data"] |= {"question_column": "asked", "answer_column": "said", "skip_invalid": True}
    (workdir / "config.json").write_text(json.dumps(config))
    data = written(tmp_path / "x.csv", "question,asked,said,answer\n,one,cat,\n,two,,\n,two,dog,\n")
    arguments = [f"--workdir={workdir}", f"--data={data}"]
    assert "evaluating 2 questions against 2 candidates" in endx("evaluate", *arguments).out
    assert "no column 'is'" in endx("evaluate", *arguments, "--answer-column=is", status=2).err


def test_squad_is_ranked_by_paragraphs_or_after_reqa(tiny_bert, tmp_path, endx):
    data = write_squad(tmp_path / "squad") / "dev-v1.1.json"
    arguments = [f"--model={tiny_bert}", f"--data={data}", f"--output={tmp_path / 'out'}"]
    for pool, candidates in (("all", 2), ("sentences", 3)):
        endx("evaluate", *arguments, *([f"--pool={pool}"] if pool != "all" else []))
        found = json.loads((tmp_path / "out" / "results.json").read_text())["evaluations"]
        assert [(one["pool"], one["candidates"]) for one in found] == [(pool, candidates)] * 3


def test_a_pair_classifier_re_orders_the_best_of_a_dual_encoder(trained_workdir, pair_workdir, tmp_path, endx):
    arguments = [f"--workdir={trained_workdir}", f"--rerank={pair_workdir}", "--top=3", f"--output={tmp_path}"]
    assert f"reranked: the top 3 of trained, re-ranked by {pair_workdir}" in endx("evaluate", *arguments).out

    def best(system):
        lines = [line.split() for line in (tmp_path / f"{system}.run.trec").read_text().splitlines()]
        return [line[2] for line in lines if line[0] == lines[0][0]]

    before, after = best("trained"), best("reranked")
    assert set(before[:3]) == set(after[:3])
    assert before[3:] == after[3:]


@pytest.fixture(scope="module")
def index(tmp_path_factory, tiny_bert):
    """An index of three documents with titles; beside it, their judgements as MS MARCO has them."""
    folder = tmp_path_factory.mktemp("index")
    (folder / "collection.tsv").write_text("1\tthe mat on the sofa\n2\ta dog\n3\tthe cat\n")
    (folder / "queries.dev.tsv").write_text("7\twhere is the mat\n8\twhat is a dog\n9\twhere is the cat\n")
    (folder / "qrels.dev.tsv").write_text("7\t0\t1\t1\n8\t0\t2\t1\n9\t0\t1\t1\n9\t0\t3\t1\n")
    verb = ["encode", f"--model={tiny_bert}", f"--corpus={folder}", f"--output={folder / 'index.sqlite'}"]
    assert run_verb(verb) == 0
    return folder / "index.sqlite"


@pytest.mark.slow
def test_a_whole_index_is_ranked_by_ids(tiny_bert, index, tmp_path, endx):
    arguments = [f"--index={index}", f"--data={index.parent}", "--split=dev", f"--output={tmp_path}"]
    assert "evaluating 3 questions against 3 documents" in endx("evaluate", *arguments).out
    (found,) = json.loads((tmp_path / "results.json").read_text())["evaluations"]
    assert (found["questions"], found["candidates"], found["system"]) == (3, 3, "index")
    # The same as in memory: every passage here is right for some question, so that all are in that pool.
    data = [f"--data={index.parent}", "--split=dev"]
    endx("evaluate", f"--model={tiny_bert}", *data, f"--output={tmp_path / 'memory'}")
    in_memory = json.loads((tmp_path / "memory" / "results.json").read_text())["systems"][tiny_bert.name]
    assert found["metrics"] == pytest.approx(in_memory, abs=1e-7)
    rows = [json.loads(line) for line in (tmp_path / "index.per_question.jsonl").read_text().splitlines()]
    assert [(row["id"], len(row["ranks"])) for row in rows] == [("7", 1), ("8", 1), ("9", 2)]
    assert found["metrics"]["mrr"] == pytest.approx(sum(row["mrr"] for row in rows) / 3)
    run = [line.split() for line in (tmp_path / "index.run.trec").read_text().splitlines()]
    assert [line[2] for line in run if line[0] == "7"].index("1") + 1 == rows[0]["ranks"][0]
    assert (tmp_path / "qrels.trec").read_text() == "7 0 1 1\n8 0 2 1\n9 0 1 1\n9 0 3 1\n"


@pytest.mark.slow
def test_a_whole_index_is_ranked_by_answers(index, tmp_path, endx):
    data = tmp_path / "nq.jsonl"
    data.write_text('{"question": "where is the mat", "answer": ["SOFA", "bed"]}\n{"question": "a", "answer": ["x"]}\n')
    assert "accuracy@20" in endx("evaluate", f"--index={index}", f"--data={data}").out
    output = index.parent / "index-evaluation" / "nq"
    found = json.loads((output / "results.json").read_text())["systems"]["index"]
    assert found == {"accuracy@5": 0.5, "accuracy@20": 0.5, "accuracy@100": 0.5}
    first, second = map(json.loads, (output / "index.per_question.jsonl").read_text().splitlines())
    assert (first["id"], first["accuracy@5"], second["ranks"], second["accuracy@100"]) == ("q0", 1.0, [], 0.0)


@pytest.mark.parametrize(
    ("index", "model", "data", "expected"),
    [
        ("runs/index.sqlite", "", "nq.jsonl.gz", "runs/index-evaluation/nq"),
        ("runs/lr3.5.sqlite", "", "set/v1.0", "runs/lr3.5-evaluation/v1.0"),
        ("gs://bucket/faq.en.sqlite", "", "nq.de/", "gs://bucket/faq.en-evaluation/nq.de"),
        ("", "models/a/..", "gs://bucket/set/test.de.JSONL", "runs/models/evaluation/test.de-answers"),
        ("", "hub/model", "sets/nq/..", "runs/model/evaluation/sets-answers"),
    ],
)
def test_results_of_indexes_and_data_whose_names_have_dots_are_apart(index, model, data, expected):
    arguments = argparse.Namespace(index=index, data=data, workdir="", model=model, pool="answers")
    assert str(evaluate._default_output(arguments)) == expected


def test_pairs_without_ids_are_found_in_an_index_by_their_texts(tiny_bert, tmp_path, monkeypatch):
    model = endx_jax.load(tiny_bert)
    rows = [f"where is the {name},the {name} is on the mat" for name in ("cat", "dog", "sofa", "mat", "zebra")]
    index, found = tmp_path / "index.sqlite", []
    for listed in (rows, rows[::-1]):
        data = written(tmp_path / "pairs.csv", "\n".join(["question,answer", *listed]))
        index.exists() or encode_corpus(tiny_bert, data, index)
        found.append(endx_jax.evaluate(index=index, data=data).evaluation.values["mrr"].tolist())
    assert found[0] == found[1][::-1]
    monkeypatch.setattr("endx_jax.index.index_model.load", raising(AssertionError))  # a model that is loaded
    assert endx_jax.evaluate(model, data, index=index).evaluation.values["mrr"].tolist() == found[1]


FORMS = {"": "the {} on the mat", "q-": "where is the {}"}


def write_set(folder, words, grade=1):
    """Writes a BEIR folder with a document and a question of each word, and two documents for the first."""
    corpus, queries = ({f"{mark}{word}": form.format(word) for word in words} for mark, form in FORMS.items())
    judged = [(f"q-{word}", word, grade) for word in words] + [(f"q-{words[0]}", words[1], 1)]
    write_beir(folder, corpus, queries, test=judged)


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    """A suite of two sets, of 40 questions and graded judgements, and of 3."""
    folder = tmp_path_factory.mktemp("data") / "suite"
    write_set(folder / "animals", [f"cat {n}" for n in range(40)], grade=3)
    write_set(folder / "things", ["dog", "mat", "sofa"])
    (folder / ".cache").mkdir()
    return folder


@pytest.fixture(scope="module")
def evaluated(tiny_bert, suite, tmp_path_factory):
    """The folder of its evaluation, and what was printed."""
    out, shown = tmp_path_factory.mktemp("evaluated") / "out", io.StringIO()
    with contextlib.redirect_stdout(shown):
        assert run_verb(["evaluate", f"--model={tiny_bert}", f"--data={suite}", f"--output={out}"]) == 0
    return out, shown.getvalue()


def test_a_suite_has_a_row_per_set_and_means_over_sets(tiny_bert, suite, evaluated, tmp_path, endx):
    out, shown = evaluated
    found = json.loads((out / "results.json").read_text())
    assert found["sets"] == ["animals", "things"]
    single = {name: json.loads((out / name / "results.json").read_text()) for name in found["sets"]}
    endx("evaluate", f"--model={tiny_bert}", f"--data={suite / 'things'}", f"--output={tmp_path}")
    # The files of each set are those of its own evaluation.
    assert single["things"] == json.loads((tmp_path / "results.json").read_text())
    assert (out / "things" / "bm25.run.trec").read_text() == (tmp_path / "bm25.run.trec").read_text()
    assert len(Index(out / "animals" / "index.sqlite").snapshot) == 40
    for system, metrics in found["systems"].items():
        for measure, value in metrics.items():
            means = [single[name]["systems"][system][measure] for name in found["sets"]]
            assert value == pytest.approx(sum(means) / 2, abs=1e-9)
        low, high = found["intervals"][system]["ndcg@10"]
        assert low <= metrics["ndcg@10"] <= high
    entry = {(entry["set"], entry["system"]): entry for entry in found["evaluations"]}
    assert len(entry) == 6
    assert entry["things", "bm25"]["metrics"] == single["things"]["systems"]["bm25"]
    assert set(entry["animals", "bm25"]["intervals"]) == set(entry["animals", "bm25"]["metrics"])
    assert entry["things", "bm25"]["intervals"] == {}  # three questions
    value = f"{single['things']['systems'][tiny_bert.name]['ndcg@10']:.3f}"
    assert f"things 3 3 {value} -" in " ".join(shown.split())


def test_two_systems_are_compared_over_the_sets_of_a_suite(tiny_bert, evaluated, tmp_path, endx):
    out, output = evaluated[0], tmp_path / "compared.json"
    systems = f"--systems=bm25,{tiny_bert.name}"
    shown = endx("compare", out, out, systems, f"--output={output}").out
    assert "43 questions in 2 sets, the same for both" in shown
    assert "ndcg@10 of each set:\nset " in shown
    compared = json.loads(output.read_text())
    means = json.loads((out / "results.json").read_text())["systems"]
    for row in compared["measures"]:
        expected = means["bm25"][row["measure"]], means[tiny_bert.name][row["measure"]]
        assert (row["first"], row["second"]) == pytest.approx(expected, abs=1e-6)
    endx("compare", out / "animals", out / "animals", systems, f"--output={output}")
    assert json.loads(output.read_text())["measures"] == compared["sets"]["animals"]
    refused = endx("compare", out, out / "animals", systems, status=2).err
    assert "43 of the 43 questions" in refused
    assert "'animals/q-cat 0'" in refused
