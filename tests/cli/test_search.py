import contextlib
import dataclasses
import functools
import io
import json
import re
import shutil
import sys
import time

import numpy as np
import pytest
from helpers import written
from refusals import check_refusal

import endx_jax
from endx_jax.cli.answers import NamedQuestion, to_jsonl, to_text
from endx_jax.cli.entry import run_verb
from endx_jax.cli.questions import read_questions
from endx_jax.data.sets.documents import Document, FoundDocument
from endx_jax.experiment.saved_model import load_pair_scorer
from endx_jax.files import locked
from endx_jax.index.corpus_encoding import encode_corpus
from endx_jax.index.index import Index, write_index


@pytest.fixture(scope="module")
def workdir(trained_workdir, tmp_path_factory):
    """A copy of the finished run, to be changed, in another place."""
    return shutil.copytree(trained_workdir, tmp_path_factory.mktemp("moved") / "run")


@pytest.fixture(scope="module")
def texts(workdir):
    """The documents of its index, by id."""
    return {document.id: document.text for _, document in Index(workdir / "index.sqlite").snapshot}


@pytest.fixture
def search(endx):
    return functools.partial(endx, "search")


@pytest.fixture
def error(search):
    return lambda *arguments: search(*arguments, status=2).err


def test_answers_are_those_of_the_index(workdir, search):
    said = search(f"--workdir={workdir}", "--top=3", "where is the cat 3", "--mode=dense", "--format=jsonl")
    found = json.loads(said.out)
    assert (found["id"], found["question"]) == ("1", "where is the cat 3")
    (expected,) = endx_jax.open_index(workdir).search(["where is the cat 3"], 3, mode="dense")
    for answer, right in zip(found["answers"], expected, strict=True):
        assert [answer[name] for name in ("rank", "id", "text")] == [right.rank, right.document.id, right.document.text]
        assert answer["score"] == pytest.approx(right.score, abs=1e-5)


def test_text_is_for_reading_after_a_line_about_the_index(workdir, texts, variables):
    variables(COLUMNS="80")
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        assert run_verb(["search", f"--workdir={workdir}", "--mode=bm25", "--top=2", "the dog", "zebra"]) == 0
    about, found = said.getvalue().split("\n", 1)
    assert "documents" in about
    first, second = found.split("zebra\n")
    lines = first.splitlines()
    assert lines[0] == "the dog"
    rank, score, name = lines[1].split()
    assert lines[2].startswith("    Q: where is the dog ")
    assert (rank, texts[name]) == ("1", lines[3].strip())
    assert float(score) > 0
    assert second == "  nothing found\n\n"
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("how", ["--mode=hybrid", "--mode=hybrid --weight=0.9", "--engine=flat"])
def test_other_ways_to_search(workdir, texts, how, search):
    if how == "--engine=flat":
        pytest.importorskip("faiss", reason="the package faiss-cpu is not installed")
    run = search(f"--workdir={workdir}", *how.split(), "the dog of 3", "--format=trec").out
    lines = [line.split() for line in run.splitlines()]
    assert [line[3] for line in lines] == [str(n) for n in range(1, len(lines) + 1)]
    assert {line[2] for line in lines} <= {*texts}


def test_a_pair_classifier_re_orders_what_was_found(workdir, texts, pair_workdir, search):
    question = "where is the cat 3"
    arguments = (f"--workdir={workdir}", question, "--format=jsonl")
    before = [answer["id"] for answer in json.loads(search(*arguments, "--top=4").out)["answers"]]
    reranked = search(*arguments, "--top=2", f"--rerank={pair_workdir}", "--rerank-top=4")
    assert reranked.err.endswith(f", the best 4 re-ranked by {pair_workdir}\n")
    after = json.loads(reranked.out)["answers"]
    pairs = np.array([[0, n] for n in range(4)])
    scores = load_pair_scorer(pair_workdir)([question], [texts[name] for name in before])(pairs)
    assert [answer["id"] for answer in after] == [before[n] for n in np.argsort(-scores, kind="stable")[:2]]
    np.testing.assert_allclose([answer["score"] for answer in after], np.sort(scores)[:1:-1], atol=1e-4)
    (only,) = json.loads(search(*arguments, "--top=1", f"--rerank={pair_workdir}", "--rerank-top=1").out)["answers"]
    assert only["id"] == before[0]


def test_questions_of_a_file_to_a_trec_run_and_standard_input_to_jsonl(workdir, texts, tmp_path, monkeypatch, search):
    questions, output = written(tmp_path / "questions.txt", "the dog\n\nwhere is the cat\n"), tmp_path / "out.run"
    flags = [f"--questions={questions}", "--top=2", "--mode=dense", f"--output={output}"]
    said = search(f"--workdir={workdir}", *flags).err
    lines = [line.split() for line in output.read_text().splitlines()]
    found = [(line[0], line[1], line[3], line[5]) for line in lines]
    assert found == [(question, "Q0", rank, "dense") for question in "13" for rank in "12"]
    assert f"2 questions, {len(texts)} documents" in said
    lines = '{"_id": "a", "text": "the dog"}\n{"id": 7, "question": "the cat"}\n{"text": "the mat"}'
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
    search(f"--workdir={workdir}", "--questions=-", f"--output={tmp_path / 'out.jsonl'}", "--mode=bm25")
    found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(line["id"], line["question"]) for line in found] == [("a", "the dog"), ("7", "the cat"), ("3", "the mat")]


@pytest.mark.parametrize(
    ("encoding", "printed"),
    [("ascii", rb"caf\xe9 \u2192"), ("latin-1", b"caf\xe9 \\u2192"), ("utf-8", "caf\xe9 \u2192".encode())],
)
def test_text_has_escapes_where_its_encoding_lacks_characters_and_jsonl_is_utf_8(
    tmp_path, monkeypatch, search, encoding, printed
):
    documents = [Document("caf\xe9", "a caf\xe9 \u2192 a bar")]
    write_index(tmp_path / "i", np.eye(1, dtype=np.float32), documents, metric="cosine", model={})
    found = {}
    for kind in ("text", "jsonl"):
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding))
        search(f"--index={tmp_path / 'i'}", "--mode=bm25", f"--format={kind}", "bar")
        sys.stdout.flush()
        found[kind] = sys.stdout.buffer.getvalue()
    assert b"a " + printed + b" a bar" in found["text"]
    (answer,) = json.loads(found["jsonl"])["answers"]
    assert (answer["id"], answer["text"]) == (documents[0].id, documents[0].text)


def test_documents_are_selected_by_their_metadata(tmp_path, search, error):
    documents = [Document(name, "a text", {"year": 2018 + n}) for n, name in enumerate("abc")]
    write_index(tmp_path / "i", np.eye(3, dtype=np.float32), documents, metric="cosine", model={})
    arguments = [f"--index={tmp_path / 'i'}", "--mode=bm25", "--format=trec", "text"]
    found = search(*arguments, '--where={"year": {"gte": 2019}}').out
    assert [line.split()[2] for line in found.splitlines()] == ["b", "c"]
    assert search(*arguments[:-1], "zebra", '--where={"year": 2019}').err.count("\n") == 1  # the line about the index
    assert "half a surrogate pair" in error(*arguments, r'--where={"year": "\ud800"}')
    assert "nothing found: no document has the field 'yaer'" in search(*arguments, '--where={"yaer": 1}').err


def test_documents_are_added_replaced_and_deleted(workdir, texts, tmp_path, search, error):
    replaced = next(iter(texts))
    rows = {"_id": "new", "body": "the elephant", "url": "example.org"}, {"_id": replaced, "body": "the giraffe"}
    corpus = written(tmp_path / "more.jsonl", rows)
    said = search(f"--workdir={workdir}", f"--add={corpus}", "--text-column=body").err
    assert f"added 2 documents, replacing 1; {len(texts) + 1} documents" in said
    assert "new · example.org\n    the elephant\n" in search(f"--workdir={workdir}", "--top=1", "the elephant").out
    (tmp_path / "parts").mkdir()
    for name in ("train", "test"):
        (tmp_path / "parts" / f"{name}.jsonl").write_text('{"body": "the ant"}\n')
    parts = [f"--workdir={workdir}", "--delete=new", f"--add={tmp_path / 'parts'}", "--text-column=body"]
    assert "choose one with split: test, train" in error(*parts)  # and nothing is deleted
    captured = search(f"--workdir={workdir}", "--delete=new", f"--delete={replaced}", "the elephant", "--format=trec")
    assert " new " not in captured.out
    assert "deleted 2" in captured.err


@pytest.mark.parametrize(
    ("name", "before", "more", "ids"),
    [
        ("x.csv", "question,answer\nq0,a\nq1,b\n", "question,answer\nq2,b\nq3,c\n", ["d0", "d1"]),
        ("x.jsonl", '{"text": "a"}\n{"text": "b"}\n', 2 * '{"text": "b", "n": 3}\n' + '{"text": "c"}', ["1", "2"]),
        ("x.txt", "a\nb\n", "c\na\n", ["1", "2"]),
    ],
)
def test_ids_that_were_counted_replace_no_other_text(tiny_bert, tmp_path, search, name, before, more, ids):
    index = encode_corpus(tiny_bert, written(tmp_path / name, before), tmp_path / "index.sqlite")

    def by_text():
        return {document.text: document for _, document in Index(index).snapshot}

    added = written(tmp_path / name, more)
    assert f"added {2 if name == 'x.csv' else 1} document" in search(f"--index={index}", f"--add={added}").err
    assert "added 0 documents" in search(f"--index={index}", f"--add={added}").err
    found = by_text()
    assert len(Index(index)) == 3
    assert [found[text].id for text in "ab"] == ids
    assert found["b"].questions == (("q1", "q2") if "q1" in before else ())
    search(f"--index={index}", f"--delete={found['c'].id}")
    search(f"--index={index}", f"--add={added}", f"--delete={ids[0]}")  # whose text comes again in x.txt
    again = by_text()
    assert again.keys() == ({*"abc"} if name == "x.txt" else {*"bc"})
    assert again["c"].id != found["c"].id


def test_no_two_processes_change_an_index_at_once(workdir, tmp_path, monkeypatch, search):
    def change(*_):
        with locked(workdir / "index.sqlite.lock"):
            pass

    monkeypatch.setattr("endx_jax.cli.search._change", change)
    assert "in use" in search(f"--workdir={workdir}", "--delete=any", status=2).err


def test_documents_that_are_added_keep_all_their_passages(trained_workdir, tmp_path, monkeypatch, search):
    monkeypatch.setattr("endx_jax.cli.search.TOGETHER", 6)
    workdir, folder = shutil.copytree(trained_workdir, tmp_path / "run"), tmp_path / "folder"
    folder.mkdir()
    for n in range(3):
        written(folder / f"{n}.md", "".join(f"# Part {part}\n\n{'cat ' * 100}\n\n" for part in range(4)))
    (folder / "old.txt").write_bytes(b"caf\xe9")
    said = search(f"--workdir={workdir}", f"--add={folder}", "cat", "--mode=bm25").err
    names = {document.name for _, document in Index(workdir / "index.sqlite").snapshot}
    assert names >= {f"{n}.md#{part}" for n in range(3) for part in range(1, 5)}
    assert re.search("skipped 1 .*'old.txt'", said)
    assert "added 3 documents, replacing 0;" in said


def test_the_prompt_answers_until_the_input_ends(workdir, texts, monkeypatch, search):
    typed, asked = iter(["the dog", "   ", "the cat"]), []

    def type_line(prompt):
        asked.append(time.monotonic())
        try:
            return next(typed)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", type_line)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    captured = search(f"--workdir={workdir}", "--top=1")
    _, shown = re.findall(r"  (\d+) ms\n", captured.out)
    assert int(shown) <= 1000 * (asked[3] - asked[2]) + 1
    assert "mode hybrid: dense + 0.08 x BM25 (weight: the default)\nType a question; Ctrl-D exits.\n" in captured.err


def test_the_index_leads_to_its_model(tiny_bert, tmp_path, workdir, search, error):
    model = endx_jax.load(tiny_bert)
    documents = [document for _, document in Index(workdir / "index.sqlite").snapshot][:5]
    documents = [dataclasses.replace(document, questions=()) for document in documents]
    embeddings = model.encode_document([document.text for document in documents], truncate_dim=8)
    about = {"name": str(tiny_bert), "identity": model.identity}
    write_index(tmp_path / "i", embeddings, documents, metric="inner product", model=about)
    assert search(f"--index={tmp_path / 'i'}", "--top=1", "the cat").out.startswith(" 1  ")
    write_index(tmp_path / "i", embeddings, documents, metric="inner product", model={})
    assert "does not name its model: set model=" in error(f"--index={tmp_path / 'i'}", "the cat")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("q.tsv", "1048585\twho repairs clocks\n2\thow long, then\n"),
        ("topics.txt", "\ufeff1048585\twho repairs clocks\r\n\r\n2\thow long, then\r\n"),
        ("q.tsv", "qid\tquery\n1048585\twho repairs clocks\n2\thow long, then\n"),
        ("q.csv", 'id;Question;text\n1048585;who repairs clocks;Yes\n2;"how long, then";No\n'),
        ("q.json", '[{"_id": "1048585", "text": "who repairs clocks"},\n{"_id": 2, "text": "how long, then"}]'),
        ("q", '{"query_id": "1048585", "query": "who repairs clocks"}\n{"query_id": 2, "query": "how long, then"}'),
    ],
)
def test_questions_keep_the_ids_of_their_file(tmp_path, name, text):
    (tmp_path / name).write_text(text, encoding="utf-8", newline="")
    assert read_questions(str(tmp_path / name)) == [("1048585", "who repairs clocks"), ("2", "how long, then")]


def test_a_column_without_a_name_holds_no_ids(tmp_path):
    path = written(tmp_path / "q.csv", ",question\n7,who\n7,how\n")
    assert read_questions(str(path)) == [("2", "who"), ("3", "how")]


@pytest.mark.parametrize(
    ("name", "text", "named"),
    [
        ("q", "\n \n", ["no questions"]),
        ("q", "7\ta\nb", ["line 2", "1 tab-separated columns"]),
        ("q", "who wrote it\tAnn", ["line 1", "one per line", "an id, a tab"]),
        ("q", "who wrote it\nwho read it\tAnn", ["line 2", "one per line"]),
        ("topics.txt", "\n<top>\n<num> Number: 7\n<title> who wrote it\n", ["line 2", "one per line"]),
        ("q", '{"txt": "a"}', ["line 1", "'question'", "'text'", "'txt'"]),
        ("q", '{"text": "a"}\nb', ["line 2, column 1", "broken JSON"]),
        ("q", '{"text": "a"}\n[1]', ["line 2", "an object", "a list"]),
        ("q", '{"text": " "}', ["line 1", "'text' is empty"]),
        ("q", '{"text": "a", "id": 1}\n{"text": "b", "id": "1"}', ["q, line 1", "'1'"]),
        ("q", '{"text": "a", "id": [1]}', ["line 1", "id", "a list"]),
        ("x.tsv", "id\tbody\n7\ta\n", ["x.tsv, line 2", "'question'", "'id', 'body'"]),
    ],
)
def test_broken_questions_are_named_by_their_line(tmp_path, name, text, named):
    path = str(written(tmp_path / name, text))
    check_refusal(lambda: read_questions(path), *named)


def test_a_reader_that_leaves_early_is_no_mistake(workdir, monkeypatch, search):
    class Closed(io.StringIO):
        def writelines(self, lines):
            raise BrokenPipeError

        def fileno(self):
            return null.fileno()

    with open("/dev/null", "w") as null:
        monkeypatch.setattr(sys, "stdout", Closed())
        search(f"--workdir={workdir}", "--mode=bm25", "the dog", status=141)


def test_known_questions_are_shown_above_the_text_also_in_a_narrow_terminal(variables):
    document = Document("a.md", "By card.", {"source": "a.md"}, tuple(f"how {n}?" for n in range(5)))
    shown = to_text([FoundDocument(1, 0.5, document)])
    assert shown == " 1  0.5000  a.md\n    Q: how 0? / how 1? / how 2? (and 2 more)\n    By card.\n"
    found = json.loads(to_jsonl(NamedQuestion("1", "q"), [FoundDocument(1, 0.5, document)]))
    assert found["answers"][0]["questions"] == [*document.questions]
    variables(COLUMNS="3")
    document = Document("a.md", "By card. " * 20, {}, tuple(f"how {n}?" for n in range(5)))
    assert to_text([FoundDocument(1, 0.5, document)]).startswith(
        " 1  0.5000  a.md\n    Q: how 0? / how 1? ... (and 2 more)\n"
    )


def test_control_characters_of_documents_are_shown_as_escapes():
    text = "\x1b]52;c;Y3VybA==\x07 a\x9b31m\r\nb"
    document = Document(text[:9], f"{text} {'word ' * 30}", {"title": text}, (text,))
    shown = to_text([FoundDocument(1, 0.5, document)])
    assert shown.startswith(r" 1  0.5000  \x1b]52;c;Y3 · \x1b]52;c;Y3VybA==\x07 a\x9b31m b" + "\n")
    assert shown.count(r"\x1b]52;c;Y3VybA==\x07 a\x9b31m b") == 3
    line = to_jsonl(NamedQuestion("1", text), [FoundDocument(1, 0.5, document)])
    assert all(character.isprintable() for character in (shown + line).replace("\n", ""))
    assert json.loads(line)["answers"][0]["text"] == document.text
