import gzip
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


def test_of_the_corpus_what_is_named_is_enough_to_train_on(folder):
    (folder / "negatives").mkdir()
    (folder / "negatives" / "test.tsv").write_text("query-id\tcorpus-id\tscore\trank\nq2\td1\t0.5\t1\n")
    with open(folder / "corpus.jsonl", "a") as corpus:
        corpus.write('\n{"_id": "d6", "text": "nobody names this"}\n')
    whole, named = read(folder), read(folder, whole=False)
    assert "nobody names this" in whole.candidates
    # d2 is named by a judgement below 0, and has d4's text; d5 is named by none.
    assert named.candidates == ("Title first", "second", "third")
    rows = range(len(whole.questions))
    assert named.subset(rows) == whole.subset(rows)
    (folder / "qrels" / "test.tsv").write_text(f"{HEADER}q1\td9\t1\n")
    with pytest.raises(EndxError, match="line 2: document 'd9' is not in corpus.jsonl"):
        read(folder, whole=False)


def test_corpus_and_queries_may_be_packed(folder):
    whole = read(folder)
    for name in ("corpus.jsonl", "queries.jsonl"):
        (folder / f"{name}.gz").write_bytes(gzip.compress((folder / name).read_bytes()))
        (folder / name).unlink()
    assert read(folder) == whole
    packed = (folder / "corpus.jsonl.gz").read_bytes()
    (folder / "corpus.jsonl.gz").write_bytes(packed[: len(packed) // 2])
    assert "corpus.jsonl.gz: the gzip data ends too early" in refusal(folder)


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


NEGATIVES = "query-id\tcorpus-id\tscore\trank\n"


def test_hard_negatives_stand_beside_the_judgements_and_right_ones_are_none(folder):
    (folder / "negatives").mkdir()
    rows = "q1\td2\t0.5\t1\nq1\td4\t0.4\t2\nq2\td1\t3\t7\nq2\td2\t-3\t8\nq4\td1\t1\t1\n"
    (folder / "negatives" / "test.tsv").write_text(NEGATIVES + rows)
    records = read(folder)
    assert records.qrels == ((0, 2), (1,))
    assert records.hard_negatives == ((1,), (0,))  # d2 and d4 are one text, which is right for q2; q4 is no question
    (folder / "negatives" / "test.tsv").rename(folder / "negatives" / "other.tsv")
    assert read(folder).hard_negatives is None


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ("q1\td1\t1\t1\n", "line 1: the header must be 'query-id\\tcorpus-id\\tscore\\trank'"),
        (f"{NEGATIVES}q9\td1\t1\t1\n", "line 2: query 'q9' is not in queries.jsonl"),
        (f"{NEGATIVES}q1\td9\t1\t1\n", "line 2: document 'd9' is not in corpus.jsonl"),
        (f"{NEGATIVES}q1\td1\t1\n", "line 2: 3 tab-separated columns where the header has 4"),
    ],
)
def test_broken_negatives_are_refused_with_their_line(folder, rows, reason):
    (folder / "negatives").mkdir()
    path = folder / "negatives" / "test.tsv"
    path.write_text(rows)
    assert refusal(folder) == f"{path}, {reason}"


def test_groups_count_where_every_question_has_one(folder):
    queries = [
        {"_id": f"q{n}", "text": text, "metadata": {"group": f"g{n}"}} for n, text in enumerate(("", "one", "two"))
    ]
    queries += [{"_id": "q3", "text": "one"}, {"_id": "q4", "text": "never right", "metadata": {"group": 4}}]
    write_lines(folder / "queries.jsonl", queries[1:])
    assert read(folder).groups == ("g1", "g2")  # of the first of equal questions
    del queries[2]["metadata"]
    write_lines(folder / "queries.jsonl", queries[1:])
    assert read(folder).groups is None
