"""DPR's, Tevatron's and FlagEmbedding's training files, which say the same in three layouts."""

import gzip
import json

import pytest

from endx_jax.data import RetrievalSet, read
from endx_jax.errors import EndxError

# Passage 7 is right for the first question and a hard negative of the second; the third has nothing right.
EXPECTED = RetrievalSet(
    questions=("who wrote it", "when was it"),
    candidates=("Book Someone wrote it.", "Pen It writes.", "Clock It was noon."),
    qrels=((0,), (2,)),
    question_ids=("q0", "q1"),
    candidate_ids=("7", "8", "9"),
    hard_negatives=((1,), (0, 1)),
)
BOOK, PEN, CLOCK = ("Book", "Someone wrote it.", "7"), ("Pen", "It writes.", "8"), ("Clock", "It was noon.", "9")
ROWS = [("who wrote it", [BOOK], [PEN]), ("when was it", [CLOCK], [BOOK, PEN]), ("why", [], [PEN])]


def dpr() -> list[dict]:
    def passages(listed):
        return [{"title": title, "text": text, "score": 1.5, "psg_id": name} for title, text, name in listed]

    return [
        {
            "dataset": "small",
            "question": question,
            "answers": ["x"],
            "positive_ctxs": passages(right),
            "negative_ctxs": passages([("No", "Drawn at random.", "1")]),
            "hard_negative_ctxs": passages(wrong),
        }
        for question, right, wrong in ROWS
    ]


def tevatron() -> list[dict]:
    def passages(listed):
        return [{"docid": name, "title": title, "text": text} for title, text, name in listed]

    return [
        {
            "query_id": f"q{n}",
            "query": query,
            "positive_passages": passages(right),
            "negative_passages": passages(wrong),
        }
        for n, (query, right, wrong) in enumerate(ROWS)
    ]


def flag_embedding() -> list[dict]:
    def texts(listed):
        return [f"{title} {text}" for title, text, _ in listed]

    return [
        {"query": query, "pos": texts(right), "neg": texts(wrong), "pos_scores": [1.0] * len(right), "prompt": "p"}
        for query, right, wrong in ROWS
    ]


def lines(rows) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def refusal(path) -> str:
    with pytest.raises(EndxError) as caught:
        read(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("indent", [None, 0, 4])
def test_dpr(tmp_path, indent):
    path = tmp_path / "train.json"
    path.write_text(json.dumps(dpr(), indent=indent))
    assert read(path) == EXPECTED
    (tmp_path / "train.json.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert read(tmp_path / "train.json.gz") == EXPECTED


def test_tevatron(tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_text(lines(tevatron()))
    assert read(path) == EXPECTED
    path.write_text(lines({k: v for k, v in row.items() if k != "negative_passages"} for row in tevatron()))
    assert read(path).hard_negatives is None


def test_flag_embedding(tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_text(lines(flag_embedding()))
    found = read(path)
    assert found.candidate_ids == ("d0", "d1", "d2")
    assert (found.candidates, found.qrels, found.hard_negatives) == (
        EXPECTED.candidates,
        EXPECTED.qrels,
        EXPECTED.hard_negatives,
    )


def test_broken_dpr_is_refused_by_line(tmp_path):
    path = tmp_path / "x.json"
    whole = json.dumps(dpr(), indent=1)
    path.write_text(whole[:300])
    assert (
        refusal(path)
        == f"{path}: the file ends inside its list, after line {whole[:300].count(chr(10)) + 1}; fetch it again"
    )
    path.write_text(whole.replace('"question": "when', '"question" "when'))
    number = next(n for n, line in enumerate(whole.splitlines(), start=1) if "when was it" in line)
    assert f"{path}, line {number}, column 14: broken JSON: Expecting ':' delimiter" in refusal(path)
    path.write_text(whole.replace("positive_ctxs", "positives"))
    assert f"{path}, line 2: no 'positive_ctxs' among 'dataset', 'question'" in refusal(path)
    path.write_text('[\n{"question": "q", "positive_ctxs": [{"text": 5}], "hard_negative_ctxs": []}\n]')
    assert refusal(path) == f"{path}, line 2: positive_ctxs[0].text must be a string, not a whole number"
    path.write_text('[\n"question"\n]')
    assert refusal(path) == f"{path}, line 2: an item of the list must be an object, not a string"
    path.write_bytes(whole.replace("noon", "caf\xe9").encode("latin-1"))
    assert "0xe9 is not UTF-8" in refusal(path)
    path.write_text("[]")
    assert refusal(path) == f"{path}: no questions with a right passage in the file"


def test_one_id_for_two_texts_is_refused(tmp_path):
    rows = tevatron()
    rows[1]["positive_passages"][0]["docid"] = "7"
    path = tmp_path / "x.jsonl"
    path.write_text(lines(rows))
    assert refusal(path) == f"{path}, line 2: the passage id '7' has stood before with another text"
    rows = tevatron()
    rows[1]["query_id"] = "q0"
    path.write_text(lines(rows))
    assert refusal(path) == f"{path}, line 2: the question id 'q0' has stood before with another text"


def test_broken_lines_are_refused_by_number(tmp_path):
    path = tmp_path / "x.jsonl"
    good = lines(flag_embedding()[:1])
    path.write_text(good + '{"query": "q", "pos": "text"}\n')
    assert refusal(path) == f"{path}, line 2: 'pos' must be a list, not a string"
    path.write_text(good + '{"query": "q", "pos": ["p"')
    assert f"{path}, line 2, column 27: broken JSON" in refusal(path)
    path.write_text(good + '{"pos": ["p"]}')
    assert refusal(path) == f"{path}, line 2: no 'query' among 'pos'"
    good = lines(tevatron()[:1])
    path.write_text(good + '{"query": "q", "query_id": null, "positive_passages": []}')
    assert refusal(path) == f"{path}, line 2: 'query_id' must be a string, not null"
