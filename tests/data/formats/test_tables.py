import dataclasses
import functools
import gzip
import json

import helpers
import pytest
from helpers import written
from refusals import check_refusal

from endx_jax.data import RetrievalSet, read
from endx_jax.data.formats import ReadOptions, open_data, read_corpus
from endx_jax.errors import EndxError

refusal = functools.partial(helpers.refusal, read)
UNASKED = {"patterns": [], "responses": ["c"]}


def write(folder, name, text, encoding="utf-8"):
    return written(folder / name, text.encode(encoding))


def test_equal_texts_are_merged_and_every_right_answer_is_kept(tmp_path):
    path = write(tmp_path, "x.csv", "question,answer\nq1,a1\nq2,a1\n q1 ,a2\nq1,a1\n")
    records = read(path)
    assert (records.questions, records.candidates) == (("q1", "q2"), ("a1", "a2"))
    assert (records.qrels, records.question_ids) == (((0, 1), (0,)), ("q0", "q1"))
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


# Names of columns that hold a, b and c, and which are the question, the answer and a hard negative.
COLUMNS = [
    *((f"{names},other", {}, "ba") for names in ("positive,anchor", "passage,query", "document,query", "Back,Front")),
    *((names, {}, "ba") for names in ("Antwort,Frage", "Réponse,Question", "回答,質問")),
    ("_question,_answer,_source_uri", {}, "ab"),  # Amazon Kendra's
    *((f"{names},Negative", {}, "abc") for names in ("Question,ANSWER", "QUERY,Positive", " question ,answer")),
    # A given name goes before the library's own, this before others, and the exact one before one in another case.
    ("id,body ,asked", {"question_column": "asked", "answer_column": "body"}, "cb"),
    ("query,anchor,answer", {"question_column": "anchor"}, "bc"),
    ("query,question,answer", {}, "bc"),
    ("Question,question,answer", {}, "bc"),
]


@pytest.mark.parametrize(("header", "options", "expected"), COLUMNS)
def test_columns_are_found_by_their_names(tmp_path, header, options, expected):
    cells = dict(zip(header.split(","), "abc", strict=False))
    records = read(write(tmp_path, "x.csv", f"{header}\n{','.join(cells.values())}\n"), **options)
    assert records.questions + records.candidates == (*expected,)
    assert records.hard_negatives == (((1,),) if len(expected) == 3 else None)
    cells = {name.strip(): cell for name, cell in cells.items()}
    assert read(written(tmp_path / "x.jsonl", [cells]), **options) == records


def test_a_text_may_be_longer_than_python_s_own_limit(tmp_path):
    long = "word " * 40_000  # 200,000 characters; the limit is 131,072
    assert read(write(tmp_path, "x.csv", f"question,answer\nq,{long}\n")).candidates == (long.strip(),)


@pytest.mark.parametrize("name", ["label", "Score", "similarity", "Similar", "is_duplicate", "relevance", "is_correct"])
def test_a_label_of_zero_makes_an_answer_a_hard_negative(tmp_path, caplog, name):
    labelled = ["q,wrong,0", "q,right,1", "q,Right,1.0", "r,right,true", "r,wrong,False", "s,alone,No", "r,right,0"]
    labelled.append("q,right,yes")
    records = read(write(tmp_path, "x.csv", "\n".join([f"question,answer,{name}", *labelled])))
    assert (records.questions, records.candidates) == (("q", "r"), ("right", "Right", "wrong"))
    assert (records.qrels, records.hard_negatives) == (((0, 1), (0,)), ((2,), (2,)))
    assert "x.csv: wrong answers of 3 of 4 rows are hard negatives, for data.hard_negatives" in caplog.text
    rows = [{"question": q, "answer": a, name: float(n)} for q, a, n in (("q", "wrong", 0), ("q", "right", 1))]
    lists = [{"query": "q", "answer": ["wrong", "", "right"], name: [0, 1, 1]}, {"query": "r", "answer": [], name: []}]
    for file, given in (("x.jsonl", rows), ("x.parquet", rows), ("y.jsonl", lists)):
        assert read(written(tmp_path / file, given)).hard_negatives == ((1,),)
    assert read(written(tmp_path / "x.jsonl", [{"q": "q", "a": "a", name: [0]}])).hard_negatives is None  # a topic


def test_labels_in_the_lists_of_categories_are_those_of_rows(tmp_path):
    first = {"q": "q", "a": "a", "score": 1}
    for score in (0, 2):
        faqs = [{"faqs": [first, {"q": "q", "a": "b", "score": score}]}, {"faqs": [{"q": "r", "a": "b"}]}]
        path = write(tmp_path, "x.json", json.dumps(faqs))
        if score:
            check_refusal(lambda path=path: read(path), "'score' is '2', and '1' above", "write these")
        else:
            assert read(path).hard_negatives == ((1,), ())
            assert [document.questions for document in read_corpus(path)] == [("q",), ("r",)]


def test_columns_with_the_name_of_a_label_that_are_none(tmp_path):
    for values in (("target", "premium", "12"), ("label", "faq", "faq")):  # groups of customers, and a constant
        path = write(tmp_path, "x.csv", "question,answer,{}\nq,a,{}\nr,b,{}\n".format(*values))
        assert read(path).hard_negatives is None
    path = write(tmp_path, "z.csv", "label,score\nq,a\nr,b\n")  # the question and the answer
    assert read(path, question_column="Label", answer_column="score").questions == ("q", "r")
    path = write(tmp_path, "w.csv", "question,score\nhow many goals,0\n")
    assert read(path, answer_column="score").candidates == ("0",)


def test_letters_of_choices_are_no_answers(tmp_path):
    rows = [f'q{n},moon,sun,"{"ab"[n % 2] if n else "ABCD"}{", B" * (n == 9)}"' for n in range(10)]
    path = write(tmp_path, "x.csv", "\n".join(["question,a,b,answer", *rows]))
    check_refusal(lambda: read(path), "x.csv: all 10 answers of column 'answer' are letters", "--answer-column")
    assert read(path, answer_column="answer").candidates == ("ABCD", "b", "a", "b, B")
    path = write(tmp_path, "x.csv", "\n".join(["question,a,b,answer", *rows[:9]]))
    assert read(path).candidates == ("ABCD", "b", "a")


OBJECTS = ("{{'text': array(['a {}'], dtype=object)}}", "[{{'text': '{} m'}}]", "array(['a', '{}'])")


@pytest.mark.parametrize("answer", ["c02e79e{}", "guides/{}", "http://x.org/{}", "{}.html", *OBJECTS])
def test_ids_and_objects_written_as_text_are_no_answers(tmp_path, answer):
    rows = [{"question": f"q{n}", "answer": [answer.format(n)] if n else "7"} for n in range(10)]
    path = written(tmp_path / "x.jsonl", rows)
    check_refusal(lambda: read(path), "all 10 answers of column 'answer'", "ids or objects", "--answer-column")
    for others in ([{"question": "r", "answer": "a text"}], [row | {"answer": "1998, 45 m"} for row in rows]):
        written(path, others + rows[: 10 * (len(others) == 1)])
        assert others[0]["answer"] in read(path).candidates
    written(path, [*(row | {"answer": "12"} for row in rows[2:]), *rows[:2]])  # mostly numbers
    assert "12" in read(path).candidates


def test_a_column_of_zeros_and_ones_that_is_not_used_is_named(tmp_path, caplog):
    rows = ["q,right,1,1,TRUE,yes,5", "q,wrong,0,,false,no,0", "r,b,1,0,true,yes,1"]
    text = "\n".join(["question,answer,gut,ok?,seen,said,other", *rows])
    assert read(write(tmp_path, "x.csv", text)).hard_negatives is None
    (line,) = [line for line in caplog.messages if "is not used" in line]
    start = f"{tmp_path}/x.csv: only 0 and 1 (or true and false, yes and no) in 'gut', 'ok?', 'said', 'seen', which is"
    assert line == f"{start} not used; if they say which answers are right, name the column `label`"


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("name", ["x.csv", "x.tsv"])
def test_the_delimiter_is_that_of_the_header_line(tmp_path, name, delimiter):
    path = write(tmp_path, name, f'question{delimiter}"answer, or; so|"\nq, 1; 2{delimiter}a\n'.replace(", 1; 2", " 1"))
    assert read(path, answer_column="answer, or; so|").candidates == ("a",)


def test_a_tab_in_the_header_of_a_tsv_file_is_its_delimiter(tmp_path):
    path = write(tmp_path, "x.tsv", "question\tanswer, plain, short\nq\ta\n")
    assert read(path, answer_column="answer, plain, short").candidates == ("a",)


@pytest.mark.parametrize("indent", [None, 1])
def test_a_json_list_of_rows_is_read_as_lines_are(tmp_path, indent):
    rows = [{"question": "q1", "answer": "a"}, {"question": "q2", "answer": "b", "negative": ["a"]}]
    expected = read(written(tmp_path / "x.jsonl", rows))
    assert read(write(tmp_path, "x.json", json.dumps(rows, indent=indent))) == expected


def test_rows_that_are_not_valid_are_refused_or_skipped_and_counted(tmp_path, caplog):
    path = write(tmp_path, "x.csv", "question,answer\nq1,a\nq2,\nq3,b\nq4\n")
    with pytest.raises(EndxError) as caught:
        read(path)
    assert str(caught.value) == f"{path}, line 3: 'answer' is empty{helpers.SKIPS}"
    assert read(path, skip_invalid=True).questions == ("q1", "q3")
    assert [one.question for one in open_data(path, ReadOptions(skip_invalid=True)).examples()] == ["q1", "q3"]
    assert caplog.messages == [f"{path}: skipped 2 invalid rows, the first: {path}, line 3: 'answer' is empty"] * 2
    path = write(tmp_path, "x.jsonl", '{"question": "q", "answer": "a"}\n{"question": \n{"question": "r"}\n')
    assert read(path, skip_invalid=True).questions == ("q",)
    assert caplog.messages[2].startswith(f"{path}: skipped 2 invalid rows, the first: {path}, line 2, column")
    path = write(tmp_path, "y.csv", "question,answer\nq,\n")
    check_refusal(lambda: read(path, skip_invalid=True), "1 invalid", "'answer'")


def test_negatives_become_hard_negatives(tmp_path):
    rows = "anchor,positive,negative_1,negative_2,negation\nq1,a,b,,ignored\nq2,b,a,c,\nq1,b,c,a,\n"
    records = read(write(tmp_path, "x.csv", rows))
    assert (records.candidates, records.qrels) == (("a", "b", "c"), ((0, 1), (1,)))
    # b was called wrong for q1 before another row called it right, and so was a after.
    assert records.hard_negatives == ((2,), (0, 2))
    for name in ("negative", "negatives", "Hard_Negatives", "neg"):
        rows = [{"query": "q", "answer": "a", name: ["b", " ", "c"]}, {"query": "r", "answer": "b", name: None}]
        records = read(written(tmp_path / "x.jsonl", rows))
        assert (records.candidates, records.hard_negatives) == (("a", "b", "c"), ((1, 2), ()))


# Passage 7 is right for the first question and a hard negative of the second; the third has nothing right.
TEXTS = ("Book Someone wrote it.", "Pen It writes.", "Clock It was noon.")
EXPECTED = RetrievalSet(("who wrote it", "when was it"), TEXTS, ((0,), (2,)), ("q0", "q1"), ("7", "8", "9"))
EXPECTED = dataclasses.replace(EXPECTED, hard_negatives=((1,), (0, 1)))
BOOK, PEN, CLOCK = ("Book", "Someone wrote it.", "7"), ("Pen", "It writes.", "8"), ("Clock", "It was noon.", "9")
ROWS = [("who wrote it", [BOOK], [PEN]), ("when was it", [CLOCK], [BOOK, PEN]), ("why", [], [PEN])]


def dpr() -> list[dict]:
    def passages(listed):
        return [{"title": title, "text": text, "score": 1.5, "psg_id": name} for title, text, name in listed]

    about = {"dataset": "small", "answers": ["x"], "negative_ctxs": passages([("No", "Drawn at random.", "1")])}
    return [
        {"question": question, **about, "positive_ctxs": passages(right), "hard_negative_ctxs": passages(wrong)}
        for question, right, wrong in ROWS
    ]


def tevatron() -> list[dict]:
    def passages(listed):
        return [{"docid": name, "title": title, "text": text} for title, text, name in listed]

    return [
        {"query_id": f"q{n}", "query": q, "positive_passages": passages(right), "negative_passages": passages(wrong)}
        for n, (q, right, wrong) in enumerate(ROWS)
    ]


def flag_embedding() -> list[dict]:
    def texts(listed):
        return [f"{title} {text}" for title, text, _ in listed]

    about = {"prompt": "p", "type": "x"}
    return [{"query": query, "pos": texts(right), "neg": texts(wrong)} | about for query, right, wrong in ROWS]


@pytest.mark.parametrize("indent", [None, 0, 4])
def test_dpr(tmp_path, indent):
    path = written(tmp_path / "train.json", json.dumps(dpr(), indent=indent))
    assert read(path) == EXPECTED
    (tmp_path / "train.json.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert read(tmp_path / "train.json.gz") == EXPECTED


def test_tevatron_and_flag_embedding(tmp_path):
    path = written(tmp_path / "train.jsonl", tevatron())
    assert read(path) == EXPECTED
    for rows, right, wrong in (
        (tevatron, "positive_passages", "negative_passages"),
        (dpr, "positive_ctxs", "hard_negative_ctxs"),
        (flag_embedding, "pos", "neg"),
    ):
        for without in ({}, {wrong: None}):
            written(path, [{k: v for k, v in row.items() if k != wrong} | without for row in rows()])
            assert read(path).hard_negatives is None
        written(path, [row | {right: row[right] or None} for row in rows()])
        assert read(path).hard_negatives == EXPECTED.hard_negatives
    for rows in (flag_embedding(), [row | {"pos": "".join(row["pos"])} for row in flag_embedding()]):
        assert read(written(path, rows)) == dataclasses.replace(EXPECTED, candidate_ids=("d0", "d1", "d2"))


def scored(row: dict, right: list[float] | None, wrong: list[float] | None) -> dict:
    return row | {"pos_scores": right, "neg_scores": wrong}


@pytest.mark.parametrize("rows", [tevatron, flag_embedding])
def test_scores_of_a_teacher_are_those_of_right_passages_and_negatives(tmp_path, rows):
    first, second, third = rows()
    path = tmp_path / "train.jsonl"
    written(path, [scored(first, [2.0], [-1]), scored(second, [3.5], [0.5, 0.25]), scored(third, [], [1.0])])
    found = read(path)
    assert found.scores == ({0: 2.0, 1: -1.0}, {2: 3.5, 0: 0.5, 1: 0.25})
    assert found.select_questions([1]).scores == ({2: 3.5, 0: 0.5, 1: 0.25},)
    assert found.subset([1]).scores == ({0: 3.5, 1: 0.5, 2: 0.25},)
    assert found.subset([1], hard_negatives=False).scores == ({0: 3.5},)
    written(path, [scored(first, None, None), second])
    assert read(path).scores is None


def test_of_two_scores_of_a_pair_the_first_counts_and_an_empty_passage_has_none(tmp_path):
    path = tmp_path / "train.jsonl"
    written(path, [scored({"query": "q", "pos": ["a"], "neg": ["b"]}, [s], [-s]) for s in (1, 2)])
    assert read(path).scores == ({0: 1.0, 1: -1.0},)
    written(path, [scored({"query": "q", "pos": ["a"], "neg": ["b", "", "c"]}, [1], [2, 3, 4])])
    assert read(path).scores == ({0: 1.0, 1: 2.0, 2: 4.0},)


@pytest.mark.parametrize(
    ("name", "contents"),
    [
        ("faq.json", {"about": "us", "faqs": [{"Questions": ["q", " ", "r"], "Answers": ["a", "b", ""]}]}),
        ("intents.json", {"intents": [{"tag": "x", "patterns": ["q", "r"], "responses": ["a", "b"], "context": [""]}]}),
        ("x.json", {"intents": [{"patterns": ["q", "r"], "responses": ["a", "b"]}, UNASKED]}),
        ("x.jsonl", {"question": ["q", "r"], "answer": ["a", "b"], "answers": {"text": ["no"]}}),
        ("x.parquet", {"question": ["q", None, "r"], "answers": ["a", None, "b"]}),
    ],
)
def test_lists_of_questions_and_answers_are_read(tmp_path, name, contents):
    whole = name.endswith(".json")
    records = read(written(tmp_path / name, json.dumps(contents, indent=1) if whole else [contents]))
    assert (records.questions, records.candidates, records.qrels) == (("q", "r"), ("a", "b"), ((0, 1), (0, 1)))


@pytest.mark.parametrize(
    "text",
    [
        "# Our FAQ\n- question: q\n  answer: a\n- question: >\n    r\n  answer: 'b'\n  since: 2026-11-30\n",
        "faqs:\n- q: !!python/object/apply:os.getcwd [q]\n  a: a\n- {q: r, a: b}\nlanguages: [en, de]\n",
        json.dumps({"questions": ["q", "r"], "ground_truths": ["a", "b"]}, indent=1),
        '{"question": "q", "answer": "a"}\n\n{"question": "r", "answer": "b"}\n',
        json.dumps({"categories": [{"title": "x", "faqs": [{"q": "q", "a": "a"}]}, {"faqs": [{"q": "r", "a": "b"}]}]}),
        json.dumps([{"name": "x", "questions": [{"question": "q", "answer": "a"}, {"question": "r", "answer": "b"}]}]),
    ],
)
def test_other_forms_of_json_and_yaml_are_read(tmp_path, caplog, text):
    path = write(tmp_path, "x.json" if text[0] in "[{" else "x.yml", text)
    records = read(path)
    assert (records.questions, records.candidates, records.qrels) == (("q", "r"), ("a", "b"), ((0,), (1,)))
    assert [document.text for document in read_corpus(path)] == ["a", "b"]
    assert not caplog.text


def test_questions_without_an_answer_are_counted(tmp_path, caplog):
    rows = [{"question": "q", "answers": answers} for answers in (["a"], [], [None, " "])]
    assert read(written(tmp_path / "x.jsonl", rows)).candidates == ("a",)
    assert "x.jsonl: 2 questions without an answer left out" in caplog.text


@pytest.mark.parametrize("end", ["\r", "\r\n", "\n"])
@pytest.mark.parametrize("first", ["sep=;", '"sep=;"', ""])
def test_tables_of_excel_are_read(tmp_path, first, end):
    path = write(tmp_path, "x.csv", end.join([first, 'question;"answer, or"', 'q;"a, b;c"', "r;b", ""]))
    records = read(path, answer_column="answer, or")
    assert (records.questions, records.candidates) == (("q", "r"), ("a, b;c", "b"))
    write(tmp_path, "x.csv", end.join([first, 'question;"answer, or"', "q;a", "r"]))
    assert f"{path}, line 4: 1 column where the header has 2" in refusal(path, answer_column="answer, or")


@pytest.mark.parametrize("question", ["who wrote", "a question without a right answer"])
def test_ids_of_rows_without_a_right_answer_are_checked_as_others(tmp_path, question):
    row = tevatron()[0] | {"query": "who wrote", "query_id": ""}
    clash = {"query": question, "positive_passages": [], "negative_passages": [{"docid": "7", "text": "Another."}]}
    path = written(tmp_path / "x.jsonl", [row, clash])
    assert "line 2: the passage id '7' belongs to two texts" in refusal(path)
    assert read(path, skip_invalid=True).candidates == TEXTS[:2]
