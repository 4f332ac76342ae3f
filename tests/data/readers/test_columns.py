import gzip
import json

import pytest

from endx_jax.data import read
from endx_jax.errors import EndxError


def refusal(path, **options) -> str:
    with pytest.raises(EndxError) as caught:
        read(path, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def write(folder, name, text, encoding="utf-8"):
    path = folder / name
    path.write_bytes(text.encode(encoding))
    return path


def test_equal_texts_are_merged_and_every_right_answer_is_kept(tmp_path):
    path = write(tmp_path, "x.csv", "question,answer\nq1,a1\nq2,a1\n q1 ,a2\nq1,a1\n")
    records = read(path)
    assert records.questions == ("q1", "q2")
    assert records.candidates == ("a1", "a2")
    assert records.qrels == ((0, 1), (0,))
    assert records.question_ids == ("q0", "q1")
    assert records.candidate_ids == ("d0", "d1")


def test_the_three_formats_read_alike(tmp_path):
    rows = [("Where, then?", 'He said "here".'), ("Où?", "two\nlines")]
    quoted = [[f'"{field.replace(chr(34), chr(34) * 2)}"' for field in row] for row in [("question", "answer"), *rows]]
    texts = {
        "x.csv": "\n".join(",".join(row) for row in quoted),
        "x.tsv": "\r\n".join("\t".join(row) for row in quoted),
        "x.jsonl": "\n".join(json.dumps(dict(zip(("question", "answer"), row, strict=True))) for row in rows),
    }
    for name, text in texts.items():
        records = read(write(tmp_path, name, text, "utf-8-sig"))
        assert [(records.questions[q], records.candidates[c]) for q, c in records.pairs] == rows
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(text.encode()))
        assert read(tmp_path / f"{name}.gz") == records


def test_other_columns_are_ignored_and_names_can_be_given(tmp_path):
    path = write(tmp_path, "x.tsv", "id\tbody \tasked\n1\tan answer\ta question\n")
    records = read(path, question_column="asked", answer_column="body")
    assert (records.questions, records.candidates) == (("a question",), ("an answer",))
    path = write(tmp_path, "x.jsonl", '{"id": 1, "body": "an answer", "asked": "a question"}')
    assert read(path, question_column="asked", answer_column="body") == records


def test_missing_columns_are_refused_with_those_that_are_there(tmp_path):
    hint = "name yours with data.question_column and data.answer_column"
    path = write(tmp_path, "x.csv", "asked,answer\na,b\n")
    assert refusal(path) == f"{path}, line 1: no column 'question' among 'asked', 'answer'; {hint}"
    path = write(tmp_path, "y.csv", "question,answer,answer\na,b,c\n")
    assert (
        refusal(path) == f"{path}, line 1: more than one column 'answer' among 'question', 'answer', 'answer'; {hint}"
    )
    path = write(tmp_path, "x.jsonl", '{"question": "a", "answer": "b"}\n{"question": "a", "text": "b"}\n')
    assert refusal(path) == f"{path}, line 2: no column 'answer' among 'question', 'text'; {hint}"


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        # The first row holds a newline inside quotes, so that the third row starts on line 4.
        ("x.csv", 'question,answer\n"q\n1",a\nq2\n', "line 4: 1 columns where the header has 2"),
        ("x.csv", 'question,answer\n"q\n1",a\nq2,a,b\n', "line 4: 3 columns where the header has 2"),
        ("x.csv", 'question,answer\n\n"q\n1", \n', "line 3: 'answer' is empty"),
        ("x.tsv", "answer\tquestion\na\t\n", "line 2: 'question' is empty"),
        ("x.jsonl", '{"question": "q", "answer": ""}', "line 1: 'answer' is empty"),
        ("x.jsonl", '{"question": 7, "answer": "a"}', "line 1: 'question' must be a string, not a whole number"),
    ],
)
def test_broken_rows_are_refused_with_their_line(tmp_path, name, text, reason):
    path = write(tmp_path, name, text)
    assert refusal(path) == f"{path}, {reason}"


def test_broken_quotes_are_refused_with_the_line_their_row_starts_on(tmp_path):
    path = write(tmp_path, "open.csv", 'question,answer\nq,a\nq,"a\nq,a\nq,a\n')
    assert f"{path}, row from line 3: unexpected end of data; " in refusal(path)
    path = write(tmp_path, "single.tsv", 'question\tanswer\n"Why" he asked\ta\n')
    assert f"{path}, row from line 2: '\t' expected after '\"'; " in refusal(path)


@pytest.mark.parametrize(("name", "text"), [("x.csv", "question,answer\n"), ("x.jsonl", "\n"), ("x.tsv", "\n\n")])
def test_no_rows_are_refused(tmp_path, name, text):
    path = write(tmp_path, name, text)
    assert refusal(path) == f"{path}: no questions with a right passage in the file"


@pytest.mark.parametrize(
    "names", [("anchor", "positive"), ("query", "answer"), ("question", "passage"), ("query", "document")]
)
def test_other_tools_names_are_found(tmp_path, names):
    path = write(tmp_path, "x.csv", f"{names[1]},{names[0]}\nan answer,a question\n")
    assert read(path).questions == ("a question",)


def test_what_could_be_either_has_to_be_named(tmp_path):
    path = write(tmp_path, "x.csv", "query,anchor,answer\nq,a,b\n")
    name = "name it with data.question_column"
    assert refusal(path) == f"{path}, line 1: the question could be 'query' or 'anchor'; {name}"
    assert read(path, question_column="anchor").questions == ("a",)
    path = write(tmp_path, "y.csv", "query,question,answer\nq,a,b\n")
    assert read(path).questions == ("a",)  # the library's own name goes before others
    path = write(tmp_path, "z.csv", "anchor,answer\nq,a\n")
    assert "no column 'asked'" in refusal(path, question_column="asked")  # a name that was given is not replaced


def test_negatives_become_hard_negatives(tmp_path):
    rows = "anchor,positive,negative_1,negative_2,negatives\nq1,a,b,,ignored\nq2,b,a,c,\nq1,b,c,a,\n"
    records = read(write(tmp_path, "x.csv", rows))
    assert records.candidates == ("a", "b", "c")
    assert records.qrels == ((0, 1), (1,))
    # b was called wrong for q1 before another row called it right, and so was a after.
    assert records.hard_negatives == ((2,), (0, 2))
    rows = [{"query": "q", "answer": "a", "negative": ["b", " ", "c"]}, {"query": "r", "answer": "b", "negative": None}]
    records = read(write(tmp_path, "x.jsonl", "\n".join(map(json.dumps, rows))))
    assert (records.candidates, records.hard_negatives) == (("a", "b", "c"), ((1, 2), ()))
    path = write(tmp_path, "y.jsonl", '{"query": "q", "answer": "a", "negative": [7]}')
    assert refusal(path) == f"{path}, line 1: 'negative' must be a string, not a whole number"
