import json

import pytest

from endx_jax.data import read
from endx_jax.errors import EndxError

HEADER = "query-id\tcorpus-id\tscore\n"


@pytest.fixture
def folder(tmp_path):
    corpus = [
        {"_id": "d1", "title": "Title", "text": "first"},
        {"_id": "d2", "title": "", "text": "second"},
        {"_id": "d3", "text": "third"},
        {"_id": "d4", "title": "", "text": " second "},
        {"_id": "d5", "title": "", "text": ""},
    ]
    queries = [{"_id": "q1", "text": "one"}, {"_id": "q2", "text": "two"}, {"_id": "q3", "text": "one"}]
    queries.append({"_id": "q4", "text": "never judged"})
    write_lines(tmp_path / "corpus.jsonl", corpus)
    write_lines(tmp_path / "queries.jsonl", queries)
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "test.tsv").write_text(f"{HEADER}q2\td4\t2\nq1\td1\t1\nq2\td3\t0\nq3\td3\t1\nq4\td2\t-1\n")
    return tmp_path


def write_lines(path, rows):
    path.write_text("\n".join(json.dumps(row) for row in rows))


def refusal(path, **options) -> str:
    with pytest.raises(EndxError) as caught:
        read(path, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_equal_texts_are_merged_under_the_first_id_and_their_judgements_united(folder):
    records = read(folder)
    assert records.candidates == ("Title first", "second", "third", "")
    assert records.candidate_ids == ("d1", "d2", "d3", "d5")
    assert records.questions == ("one", "two")
    assert records.question_ids == ("q1", "q2")
    assert records.qrels == ((0, 2), (1,))


def test_the_split_must_be_named_where_there_are_several(folder):
    (folder / "qrels" / "train.tsv").write_text(f"{HEADER}q4\td1\t1\n")
    qrels = folder / "qrels"
    assert read(folder, split="train").questions == ("never judged",)
    assert read(folder, split="test").questions == ("one", "two")
    assert refusal(folder) == f"{qrels}: several splits; give one of them as split: test, train"
    choose = "choose with data.split or --split from test, train"
    assert refusal(folder, split="dev") == f"{qrels}: no split 'dev'; {choose}"


@pytest.mark.parametrize("name", ["corpus.jsonl", "queries.jsonl"])
def test_a_folder_without_its_parts_is_refused(folder, name):
    (folder / name).unlink()
    assert refusal(folder) == f"{folder}: a folder is read as BEIR, and this one has no {name}"


def test_a_folder_without_judgements_is_refused(folder):
    (folder / "qrels" / "test.tsv").unlink()
    assert refusal(folder) == f"{folder}/qrels: no .tsv file in the folder"
    (folder / "qrels").rmdir()
    assert refusal(folder) == f"{folder}: a folder is read as BEIR, and this one has no qrels"


@pytest.mark.parametrize(
    ("qrels", "reason"),
    [
        ("q1\td1\t1\n", "line 1: the header must be 'query-id\\tcorpus-id\\tscore'"),
        (f"{HEADER}q1\td1\t1\n\nq9\td1\t1\n", "line 4: query 'q9' is not in queries.jsonl"),
        (f"{HEADER}q1\td9\t1\n", "line 2: document 'd9' is not in corpus.jsonl"),
        (f"{HEADER}q1\td9\t0\n", "line 2: document 'd9' is not in corpus.jsonl"),
        (f"{HEADER}q1\td5\t1\n", "line 2: document 'd5' is called right, but has neither title nor text"),
        (f"{HEADER}q1\td1\n", "line 2: 2 tab-separated columns where the header has 3"),
        (f"{HEADER}q1\td1\t0.5\n", "line 2: score '0.5' is not a whole number"),
    ],
)
def test_broken_judgements_are_refused_with_their_line(folder, qrels, reason):
    path = folder / "qrels" / "test.tsv"
    path.write_text(qrels)
    assert refusal(folder) == f"{path}, {reason}"


def test_judgements_without_a_right_document_are_refused(folder):
    path = folder / "qrels" / "test.tsv"
    path.write_text(f"{HEADER}q1\td1\t0\n")
    assert refusal(folder) == f"{path}: no judgement has a score above 0"


@pytest.mark.parametrize(
    ("name", "rows", "reason"),
    [
        ("corpus.jsonl", [{"_id": "d1", "text": "a"}, {"_id": "d1", "text": "b"}], "line 2: _id 'd1' has stood before"),
        (
            "queries.jsonl",
            [{"_id": "q1", "text": "a"}, {"_id": "q1", "text": "b"}],
            "line 2: _id 'q1' has stood before",
        ),
        ("corpus.jsonl", [{"text": "a"}], "line 1 has no '_id'"),
        ("corpus.jsonl", [{"_id": 4, "text": "a"}], "line 1: '_id' must be a string, not a whole number"),
        ("corpus.jsonl", [{"_id": "d1", "title": "a"}], "line 1 has no 'text'"),
        ("corpus.jsonl", [{"_id": "d1", "title": None, "text": "a"}], "line 1: 'title' must be a string, not null"),
        ("queries.jsonl", [{"_id": "q1", "text": " "}], "line 1: 'text' is empty"),
    ],
)
def test_broken_corpora_and_queries_are_refused_with_their_line(folder, name, rows, reason):
    write_lines(folder / name, rows)
    assert f"{folder / name}, {reason}" in refusal(folder)
