"""Data that is refused: what it holds, and the file, line, field and remedy that the one line of its refusal names."""

import gzip
import json

import pytest
import small_mrqa
import small_natural_questions as nq
import small_squad
from helpers import written
from refusals import check_refusal

from endx_jax.data import read
from endx_jax.data.formats import mrqa, natural_questions, open_data, read_corpus
from endx_jax.data.formats.answer_strings import read_answered


def put(folder, files):
    """Writes files by their names; those of None are left out."""
    for name, contents in files.items():
        if contents is not None:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            written(folder / name, contents)
    return folder


def changed(tree, place, value):
    """A copy with another value at a place such as `qas.0.question`, or without it for `...`."""
    tree = holder = json.loads(json.dumps(tree))  # no two places are one object
    *steps, last = [int(step) if step.isdigit() else step for step in place.split(".")]
    for step in steps:
        holder = holder[step]
    if value is ...:
        del holder[last]
    else:
        holder[last] = value
    return tree


def paragraphs(path):
    return list(open_data(path).paragraphs())


def half(text):
    packed = gzip.compress(text.encode(), mtime=0)
    return packed[: len(packed) // 2]


QA = '{"question": "q", "answer": "a"}'
# Without the time, as workers of a parallel run compare the ids of their tests, which have the contents.
PACKED = gzip.compress(b"".join(b"line %d\n" % n for n in range(1000)), mtime=0)
DAMAGED = PACKED[:40] + bytes(20) + PACKED[60:]


def row(name, contents, *named, **options):
    return name, contents, named, options


ASKED = {"query": "q", "positive_passages": [], "negative_passages": []}
PASSAGES = [{"docid": "7", "title": "Book", "text": "Someone wrote it."}]
TEVATRON = [ASKED | {"query_id": name, "positive_passages": PASSAGES} for name in ("q0", "q1")]
DPR = {"question": "when was it", "dataset": "small", "positive_ctxs": [{"text": "noon", "title": "Clock"}]}
DPR_LIST = json.dumps([DPR | {"hard_negative_ctxs": []}] * 2, indent=1)
LLAMA = {"queries": {"1": "q"}, "corpus": {"x": "a", "y": "b"}, "mode": "text"}
USER, REPLY = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}
MARCO_QA = {"query": "q", "answers": ["No Answer Present."]}
OURS = ("--question-column", "--answer-column")


def scored(right, wrong):
    row = {"query": "q", "pos": ["a"], "neg": ["b"]}
    return [row | {"pos_scores": [1.0], "neg_scores": [0.0]}, row | {"pos_scores": right, "neg_scores": wrong}]


ROWS = [
    row("x.csv", "question,answer,score\nq,a,1\nr,b,0.93\n", "line 3", "'score'", "'0.93'", "'1' above", "leave out"),
    row("x.csv", "question,answer,score\nq,a,1\nr,b,2\n", "line 3", "'2'", "leave out", skip_invalid=True),
    row("x.csv", "question,answer,target\nq,a,premium\nr,b,0\n", "line 3", "'target'", "'0'", "'premium' above"),
    row("x.csv", "question,answer,target\nq,a,0\nr,b,premium\n", "line 3", "'target'", "'premium'", "'0' above"),
    row("x.csv", "question,answer,correct\nq,a,5\nr,b,0\n", "'correct'", "'0'", "'5' above"),
    row("x.csv", "question,answer,label\nq,a,0\nr,b,0\n", "no questions", "2 rows with wrong"),
    row("x.csv", "asked,answer\na,b\n", "line 1", "'question'", "'asked', 'answer'", *OURS),
    row("x.csv", "question,answer,answer\na,b,c\n", "line 1", "more than one", "'answer'", *OURS),
    row("x.csv", "kind;May I pay the fee for my course at the end of the term?;Yes.\n", "add a line of names above it"),
    row("x.csv", "question,answer,negative,negative\nq,a,b,c\n", "line 1", "'negative'", "rename one"),
    row("x.csv", "query,anchor,answer\nq,a,b\n", "line 1", "'query' or 'anchor'", OURS[0]),
    row("x.csv", "question,answer,contexts,ground_truth\nq,a,c,b\n", "'answer' or 'ground_truth'", OURS[1]),
    row("x.csv", "query,answer,positive,negative\nq,a,b,c\n", "'answer' or 'positive'", OURS[1]),
    row("x.csv", "Question,QUESTION,answer\nq,q,a\n", "'Question' or 'QUESTION'", OURS[0]),
    row("x.csv", "anchor,answer\nq,a\n", "'asked'", question_column="asked"),  # a given name is not replaced
    # The first row holds a newline inside quotes, so that the third row starts on line 4.
    row("x.csv", 'question,answer\n"q\n1",a\nq2\n', "line 4", "1 column", "header has 2", "put quotes"),
    row("x.csv", 'question,answer\n"q\n1",a\nq2,a,b\n', "line 4", "3 columns", "header has 2", "put quotes"),
    row("x.csv", 'question,answer\n\n"q\n1", \n', "line 3", "'answer' is empty"),
    row("x.csv", 'question,answer\nq,a\nq,"a\nq,a\nq,a\n', "from line 3", "end of data", 'say ""hi""'),
    row("x.tsv", 'question\tanswer\n"Why" he\ta\n', "from line 2", "expected after", 'say ""hi""'),
    row("x.tsv", "answer\tquestion\na\t\n", "line 2", "'question' is empty"),
    row("x.jsonl", [{"question": "a", "answer": "b"}, {"question": "a", "text": "b"}], "line 2", "'answer'", *OURS),
    row("x.jsonl", [{"question": "q", "answer": ""}], "line 1", "'answer' is empty"),
    row("x.jsonl", [{"question": 7, "answer": "a"}], "line 1", "'question'", "a whole number"),
    row("x.jsonl", [{"query": "q", "answer": "a", "negative": [7]}], "line 1", "'negative', item 0", "a whole number"),
    row("x.jsonl", [{"question": {"text": "q"}, "answer": "a"}], "'question' holds an object"),
    row("x.jsonl", [{"question": "q", "output": {"x": "a"}}], "'output' holds an object"),
    row("x.jsonl", [{"question": [{"text": "q"}], "answer": "a"}], "'question' holds an object"),
    row("x.jsonl", [{"question": "q", "answer": [{"text": "a"}]}], "'answer', item 0", "an object"),
    row("x.jsonl", [{"question": "q", "answer": "['a' 'b']"}], "'answer'", "no JSON", "write a list"),
    row("x.jsonl", [{"question": "q", "answer": "['a', nan]"}], "'answer'", "no JSON", "write a list"),
    row("x.jsonl", [{"query": "q", "answer": ["a", "b"], "labels": [1]}], "'labels'", "a row for each answer"),
    row("x.jsonl", [{"query": "q", "answer": ["a", "b"], "scores": [0.9, 0.3]}], "'scores'", "'0.3'", "'0.9' above"),
    row("x.jsonl", [MARCO_QA | {"passages": {"is_selected": [0], "passage_text": ["a"]}}], "'passages'", "ranking"),
    row("x.jsonl", [MARCO_QA | {"passages": [{"is_selected": 0, "passage_text": "a"}]}], "line 1", OURS[1]),
    row("x.jsonl", [{"messages": [USER]}], "'answer'", "'messages'", *OURS),
    row("x.jsonl", [{"messages": [USER | {"content": [{"type": "image_url"}]}, REPLY]}], "role user"),
    row("x.jsonl", scored([1.0], None), "line 2", "'neg_scores' is missing"),
    row("x.jsonl", scored([1.0], [1.0, 2.0]), "line 2", "'neg_scores'", "2 scores for 1"),
    row("x.jsonl", scored([], [1.0]), "line 2", "'pos_scores'", "0 scores for 1"),
    row("x.jsonl", scored([float("nan")], [1.0]), "line 2"),
    row("x.jsonl", scored([1.0], [-1e39]), "line 2", "neg_scores[0] is -1e+39", "from -3e+38"),
    row("x.jsonl", scored(["1"], [1.0]), "line 2", "pos_scores[0] is '1'", "number"),
    row("x.jsonl", scored(1.0, [1.0]), "line 2", "'pos_scores'", "a list"),
    row("x.jsonl", scored(None, None), "line 2", "no scores", "the rows above"),
    row("x.jsonl", changed(TEVATRON, "1.positive_passages.0.text", "Other."), "line 2", "'7'", "'Book Someone"),
    row("x.jsonl", changed(changed(TEVATRON, "1.query", "r"), "1.query_id", "q0"), "line 2", "'q0'", "two texts"),
    row("x.json", '[{"question": "q", "answer": "a"},\n {"question": "q", "answer": 7}]', "line 2", "'answer'"),
    row(
        "x.json", '{"faqs": [{"question": "q", "answer": "a"}, {"question": "q", "answer": [7]}]}', "faqs[1]", "item 0"
    ),
    row("x.json", '[["q", "a"]]', "line 1", "write objects"),
    row("x.json", '{"groups": [{"name": "x", "list": [{"q": "q"}]}]}', "groups[0]", "'answer'", "'name', 'q'", *OURS),
    row("x.json", '{"groups": [{"list": [{"question": "q", "answer": ""}]}]}', "groups[0]", "'answer' is empty"),
    row("x.jsonl", [{"instruction": "q", "instances": [{"input": "r", "output": "a"}]}], "'answer'", "'instances'"),
    row("x.json", '[\n"question"\n]', "line 2", "write objects"),
    row("x.json", "[]", "no questions"),
    row("x.json", json.dumps(LLAMA | {"relevant_docs": {"1": ["z"]}}), "relevant_docs['1']", "'z'", "'x', 'y'"),
    row("x.json", json.dumps(LLAMA | {"relevant_docs": {"2": ["x"]}}), "relevant_docs['2']", "'2'", "'1'"),
    row("x.json", DPR_LIST[:150], "line 2", "ends inside", "fetch it again"),
    row("x.json", DPR_LIST.rstrip("]\n "), "ends inside", "fetch it again"),
    row("x.json", DPR_LIST.replace('"question":', '"question"', 1), "line 3", "broken JSON"),
    row("x.json", DPR_LIST.replace("positive_ctxs", "positives"), "line 2", "'positive_ctxs'", "'question', 'dataset'"),
    row("x.json", DPR_LIST.replace('"noon"', "5"), "line 2", "positive_ctxs[0]", "'text'", "a whole number"),
    row("x.json", DPR_LIST.replace("noon", "caf\xe9").encode("latin-1"), "0xe9 is not UTF-8", "CP949"),
    # Lists of objects and lines of them that end or go on as they may not.
    row("x.json", f'[{QA},\n {{"a": 2,}}]', "line 2", "broken JSON"),
    row("x.json", f"[{QA},\n]", "line 2", "broken JSON", "{ is expected"),
    row("x.json", f"[{QA}\n{QA}]", "line 2", "broken JSON", ", or ] is expected"),
    row("x.json", f"[{QA}]\n[]", "line 2", "broken JSON", "the end of the file is expected"),
    row("x.json", f"[{QA},", "line 1", "ends inside", "fetch it again"),
    row("x.json", '[\n{"a": "b', "line 2", "ends inside", "fetch it again"),
    row("x.jsonl", f'{QA}\n{{"a": 1\n', "line 2, column 8", "broken JSON"),
    row("x.jsonl", f"{QA}\n[1]\n", "line 2", "an object", "a list"),
    row("x.txt", "#separator:tab\n#html:true\nq\ta\n", "Anki", "front", ".tsv"),
    # YAML.
    row("x.yml", "- question: q\n  answer: a\n b: [\n", "line 3", "broken YAML"),
    row("x.yaml", "- " * 5_000 + "a", "broken YAML", "RecursionError"),
    row("x.yml", "- question: q\n  answer:\n", "x.yml: [0]: 'answer' is empty"),
    row("x.yml", "conversations:\n- - q\n  - a\n", "no list of objects", "write objects"),
    row("x.yml", "#" * 2_000_001, "2,000,000 bytes"),
    row("x.yml", "- question: &a q\n  answer: *a\n", "line 2", "an alias, which is not read"),
    # Files that are no text.
    row("x.csv", b"", "the file is empty"),
    row("x.csv.gz", gzip.compress(b"", mtime=0), "the file is empty"),
    row("x.csv", b"question,answer\ncaf\xe9,a\n", "line 2, byte 4", "0xe9", '"CSV UTF-8"', "WINDOWS-1252"),
    row("x.csv", "first".encode("utf-16"), "line 1, byte 1", "0xff", "iconv -f UTF-16"),
    row("x.csv.gz", half("question,answer\n" * 999), "ends too early", "fetch the file again"),
    row("x.csv.gz", b"not gzip at all", "broken gzip data"),
    row("x.csv.gz", DAMAGED, "broken gzip data"),
    # Tables of Arrow.
    row("x.parquet", [{"question": "q", "answer": "a"}, {"question": "q", "answer": ""}], "row 2", "'answer' is empty"),
    row("x.parquet", [{"question": "q", "answers": {"text": ["c"]}}], "'answers' holds an object", OURS[1]),
    # Endings that are not known.
    row("x.doc.gz", "x", "'.doc.gz'", "known are .json"),
    row("x.parquet.gz", "x", "'.parquet.gz'", "known are .json"),
    row("x", "x", "''", "known are .json"),
    row("x.xlsx", "x", "'.xlsx'", '"CSV UTF-8"', "known are .json"),
]

QUESTIONS = (small_squad.asked("i1", "What?", 0), small_squad.asked("i2", " Who? ", 0))
TREE = {"data": [small_squad.article("One", ("A first. ", *QUESTIONS), ("A second.", *QUESTIONS[:1]))]}
SQUAD_ROW = {**QUESTIONS[0], "title": "One", "context": "A first. ", "answers": {"text": ["A"], "answer_start": [0]}}
PLACE, START = "data[0].paragraphs[0].qas[1]", "from 0 to 8"


def squad(place, value, *named):
    return row("x.json", json.dumps(changed(TREE, f"data.{place}", value)), *named)


def squad_row(answers, *named):
    return row("x.jsonl", [SQUAD_ROW, SQUAD_ROW | {"id": "i2", "question": "Who?", "answers": answers}], *named)


SQUAD = [
    squad("0", "x", "data[0]", "an object"),
    squad("0.title", "\ud800", "data[0]", "'title'", r"'\ud800'"),
    squad("0.paragraphs", {}, "data[0]", "'paragraphs'", "a list"),
    squad("0.paragraphs.0.context", "\n", "data[0].paragraphs[0]", "'context' is empty"),
    squad("0.paragraphs.1.qas.0.answers", ..., "data[0].paragraphs[1].qas[0]", "'answers'", "'id', 'question'"),
    squad("0.paragraphs.0.qas.1.question", " ", PLACE, "'question' is empty"),
    squad("0.paragraphs.0.qas.1.question", None, PLACE, "'question'", "null"),
    squad("0.paragraphs.0.qas.1.id", None, PLACE, "'id'", "null"),
    squad("0.paragraphs.0.qas.1.id", "i1", "'i1'", "'What?'", "' Who? '"),
    squad("0.paragraphs.0.qas.1.is_impossible", "no", PLACE, "'is_impossible'", "true or false"),
    squad("0.paragraphs.0.qas.1.answers", [], PLACE, "'answers' is empty", "is_impossible"),
    squad("0.paragraphs.0.qas.1.answers.0.text", "", f"{PLACE}.answers[0]", "'text' is empty"),
    squad("0.paragraphs.0.qas.1.answers.0.answer_start", True, f"{PLACE}.answers[0]", "'answer_start' is True", START),
    squad("0.paragraphs.0.qas.1.answers.0.answer_start", 9, f"{PLACE}.answers[0]", "'answer_start' is 9", START),
    squad_row({"text": ["A"], "answer_start": [9]}, "line 2", "answers[0]", "'answer_start' is 9", START),
    squad_row({"text": ["A"], "answer_start": []}, "line 2", "1 'text'", "0 'answer_start'"),
    squad_row("A", "line 2", "'answers'", "a list"),
    row("x.json", '{"rows": []}', "'rows'", "SQuAD's 'data'", "write objects"),
    row("x.json", "7", "an object", "a whole number"),
    row("x.json", '{\n "data": [\n', "line 3, column 1", "broken JSON"),
    row("x.json", '{\n "data": [}\n', "line 2, column 11", "broken JSON"),
    row("x.json", '{"a": 1}\n{"a": 2}\n', "line 1", "'question'", "'a'"),
    row("x.json", '{"a":\n1}\n{"a": 2}\n', "line 3, column 1", ".jsonl"),
]


@pytest.mark.parametrize(("name", "contents", "named", "options"), ROWS + SQUAD)
def test_a_file_is_named_with_line_and_column(tmp_path, name, contents, named, options):
    check_refusal(lambda: read(written(tmp_path / name, contents), **options), name, *named)


MRQA = small_mrqa.line("Ann sings.", small_mrqa.asked("q1", "who?", "Ann sings.", ("Ann",)))
SPANS = "qas.0.detected_answers.0.char_spans"
HTML = "<H1>Bees</H1> <P>The bee (Apis) is small.</P> <P>It stings.</P>"
TOKENS = nq.page(HTML)
FIRST, SECOND = nq.span(TOKENS, "<P> The bee ( Apis ) is small . </P>"), nq.span(TOKENS, "<P> It stings . </P>")
APIS, NQ = nq.span(TOKENS, "Apis"), nq.full(1, "what are bees", HTML, nq.annotation(FIRST, nq.span(TOKENS, "Apis")))
BOUNDS = {"candidate_id": "SQuAD_b1/_0", "response_start": 2, "response_end": 5}


@pytest.mark.parametrize(
    ("place", "value", "named"),
    [
        ("context", 7, ["'context'", "a whole number"]),
        ("context", "\ud800", ["'context'", r"'\ud800'"]),
        ("qas", {}, ["'qas'", "a list"]),
        ("qas.0.qid", "", ["qas[0]", "'qid' is empty"]),
        ("qas.0.question", None, ["qas[0]", "'question'", "null"]),
        ("qas.0.detected_answers", None, ["qas[0]", "'detected_answers'", "a list"]),
        (SPANS, [[0]], ["qas[0].detected_answers[0].char_spans[0] is [0]", "a first"]),
        (SPANS, [[0, 10]], ["char_spans[0] is [0, 10]", "10"]),
        (SPANS, [[5, 4]], ["char_spans[0] is [5, 4]"]),
        (SPANS, [[-1, 4]], ["char_spans[0] is [-1, 4]"]),
    ],
)
def test_a_line_of_mrqa_is_named(tmp_path, place, value, named):
    path = str(written(tmp_path / "x.jsonl", [small_mrqa.HEADER, changed(MRQA, place, value)]))
    check_refusal(lambda: list(mrqa.mrqa_paragraphs(path)), "x.jsonl, line 2", *named)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"annotations": None}, ["'annotations'", "a list"]),
        ({"question_text": ""}, ["'question_text' is empty"]),
        ({"example_id": 1.5}, ["'example_id'", "a fractional number"]),
        (
            {"annotations": [nq.annotation(FIRST | {"end_token": 999}, APIS)]},
            ["long_answer.end_token is 999", "from 0"],
        ),
        ({"annotations": [nq.annotation(SECOND, APIS)]}, ["short_answers[0]", "not within"]),
        ({"annotations": [{"short_answers": [APIS]}]}, ["annotations[0]", "'long_answer'", "'short_answers'"]),
        ({"document_tokens": [{}] * len(TOKENS)}, ["document_tokens[", "'token'"]),
        ({"document_tokens": [one | {"end_byte": 10**6} for one in TOKENS]}, ["end_byte is 1000000", "from 0"]),
        ({"document_text": None}, ["'document_text'", "null"]),
    ],
)
def test_a_line_of_natural_questions_is_named(tmp_path, change, named):
    path = str(written(tmp_path / "x.jsonl", [NQ, NQ | change]))
    check_refusal(lambda: list(natural_questions.natural_paragraphs(path)), "x.jsonl, line 2", *named)


@pytest.mark.parametrize(
    ("name", "contents", "others"),
    [
        ("json", json.dumps(TREE), json.dumps(changed(TREE, "data.0.paragraphs.0.qas.1.question", "Other?"))),
        ("jsonl", [MRQA], [changed(MRQA, "qas.0.question", "other?")]),
        ("jsonl", [NQ], [NQ | {"question_text": "other"}]),
    ],
)
def test_an_id_of_questions_in_two_files_is_named(tmp_path, name, contents, others):
    put(tmp_path, {f"a.{name}": contents, f"b.{name}": others})
    check_refusal(lambda: read(tmp_path), f"b.{name}", "two texts")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"candidate_id": "SQuAD-b1"}, ["'SQuAD-b1'", "NAME_QUESTION/.../_NUMBER"]),
        ({"candidate_id": "SQuAD_b1/0"}, ["'SQuAD_b1/0'", "NAME_QUESTION/.../_NUMBER"]),
        ({"candidate_id": "SQuAD_z9/_0"}, ["'z9'", "x.jsonl", "give MRQA's file"]),
        ({"response_end": 2}, ["from 2 to 2 is empty"]),
        ({"response_start": "2"}, ["'response_start' is '2'", "from 0"]),
    ],
)
def test_a_boundary_of_multireqa_is_named(tmp_path, change, named):
    context = small_mrqa.line("Ann sings.", small_mrqa.asked("b1", "who?", "Ann sings.", ("Ann",)))
    put(tmp_path, {"candidates.jsonl": [BOUNDS, BOUNDS | change], "x.jsonl": [small_mrqa.HEADER, context]})
    check_refusal(lambda: paragraphs(tmp_path), "candidates.jsonl, line 2", *named)


def test_a_boundary_beyond_its_context_and_boundaries_alone_are_named(tmp_path):
    put(tmp_path, {"candidates.jsonl": [BOUNDS | {"response_end": 32}]})
    check_refusal(lambda: paragraphs(tmp_path), "candidates.jsonl", "put MRQA's")
    context = small_mrqa.line("Ann.", small_mrqa.asked("b1", "who?", "Ann.", ("Ann",)))
    put(tmp_path, {"x.jsonl": [small_mrqa.HEADER, context]})
    check_refusal(lambda: paragraphs(tmp_path), "x.jsonl, line 2", "character 32", "4")


@pytest.mark.parametrize(
    ("name", "text", "named"),
    [
        ("a.tsv", "q\t['a']\nr\t[]\n", ["line 2", "no answer"]),
        ("a.tsv", "q\t['a']\nr\n", ["line 2", "1 tab-separated columns"]),
        ("a.tsv", "q\t['a']\n\t['b']\n", ["line 2", "question is empty"]),
        ("a.jsonl", '{"question": "q", "answer": ["a"]}\n{"question": "q"}\n', ["line 2", "'answer'"]),
        ("a.jsonl", '{"question": "q", "answer": ["a", 1]}', ["line 1", "'answer', item 1", "a whole"]),
        ("a.jsonl", '{"question": "q", "answer": ["a"', ["line 1, column 33", "broken JSON"]),
    ],
)
def test_a_line_of_questions_with_answers_is_named(tmp_path, name, text, named):
    path = str(written(tmp_path / name, text))
    check_refusal(lambda: read_answered(path), path, *named)


HEADER = "query-id\tcorpus-id\tscore\n"
RANKED = "query-id\tcorpus-id\tscore\trank\n"
QRELS, NEGATIVES, SCORES = "qrels/test.tsv", "negatives/test.tsv", "scores/test.tsv"
BEIR = {
    "corpus.jsonl": [{"_id": "d1", "text": "a"}, {"_id": "d2", "text": "b"}, {"_id": "d5", "text": ""}],
    "queries.jsonl": [{"_id": "q1", "text": "one"}],
    QRELS: f"{HEADER}q1\td1\t1\n",
}
WITH_SCORES = {NEGATIVES: f"{RANKED}q1\td2\t1\t1\n"}


def beir(changes, *named, **options):
    return BEIR | changes, named, options


def corpus(rows, *named):
    return beir({"corpus.jsonl": rows}, "corpus.jsonl", *named)


def queries(rows, *named):
    return beir({"queries.jsonl": rows}, "queries.jsonl", *named)


def scores(value):
    lines = f"{HEADER}q1\td1\t2.5\nq1\td2\t{value}\n"
    return beir(WITH_SCORES | {SCORES: lines}, f"{SCORES}, line 3", repr(value), "finite", "float32")


FOLDERS = [
    beir({QRELS: "q1\td1\t1\n"}, f"{QRELS}, line 1", r"'query-id\tcorpus-id\tscore'"),
    beir({QRELS: f"{HEADER}q1\td1\t1\n\nq9\td1\t1\n"}, f"{QRELS}, line 4", "'q9'", "queries.jsonl"),
    beir({QRELS: f"{HEADER}q1\td9\t1\n"}, f"{QRELS}, line 2", "'d9'", "corpus.jsonl"),
    beir({QRELS: f"{HEADER}q1\td9\t0\n"}, f"{QRELS}, line 2", "'d9'", "corpus.jsonl"),
    beir({QRELS: f"{HEADER}q1\td9\t1\n"}, f"{QRELS}, line 2", "'d9'", "corpus.jsonl", whole=False),
    beir({QRELS: f"{HEADER}q1\td5\t1\n"}, f"{QRELS}, line 2", "'d5'", "neither title nor text"),
    beir({QRELS: f"{HEADER}q1\td1\n"}, f"{QRELS}, line 2", "2 tab-separated columns", "header has 3"),
    beir({QRELS: f"{HEADER}q1\td1\t0.5\n"}, f"{QRELS}, line 2", "'0.5'", "whole number"),
    beir({NEGATIVES: "q1\td1\t1\t1\n"}, f"{NEGATIVES}, line 1", r"'query-id\tcorpus-id\tscore\trank'"),
    beir({NEGATIVES: f"{RANKED}q9\td1\t1\t1\n"}, f"{NEGATIVES}, line 2", "'q9'", "queries.jsonl"),
    beir({NEGATIVES: f"{RANKED}q1\td9\t1\t1\n"}, f"{NEGATIVES}, line 2", "'d9'", "corpus.jsonl"),
    beir({NEGATIVES: f"{RANKED}q1\td1\t1\n"}, f"{NEGATIVES}, line 2", "3 tab-separated columns", "header has 4"),
    beir(WITH_SCORES | {SCORES: f"{HEADER}q1\td1\t2.5\n"}, SCORES, "'d2'", "'q1'", "score all"),
    *map(scores, ("nan", "-inf", "1e39", "x")),
    corpus([{"_id": "d1", "text": "a"}, {"_id": "d1", "text": "b"}], "line 2", "_id 'd1'", "two"),
    corpus([{"text": "a"}], "line 1", "'_id'", "'text'"),
    corpus([{"_id": 4.5, "text": "a"}], "line 1", "'_id'", "a fractional number"),
    corpus([{"_id": "d1", "title": "a"}], "line 1", "'text'", "'_id', 'title'"),
    corpus([{"_id": "d1", "title": ["a"], "text": "a"}], "line 1", "'title'", "a list"),
    queries([{"_id": "q1", "text": "a"}, {"_id": "q1", "text": "b"}], "line 2", "_id 'q1'", "two"),
    queries([{"_id": "q1", "text": " "}], "line 1", "'text' is empty"),
    beir({"corpus.jsonl": None, "corpus.jsonl.gz": half('{"_id": "d1"}' * 99)}, "corpus.jsonl.gz", "ends too early"),
    beir({"qrels/train.tsv": HEADER}, "qrels: several splits", "split: test, train"),
    beir({"qrels/train.tsv": HEADER}, "'dev'", "split from test, train", split="dev"),
    beir({"corpus.jsonl": None}, "no corpus.jsonl", "BEIR", "1 .tsv", "1 .jsonl"),
    beir({"queries.jsonl": None}, "no queries.jsonl", "BEIR", "1 .tsv", "1 .jsonl"),
    beir({QRELS: None, "qrels/about.txt": "x"}, "no qrels", "qrels/test.tsv", "1 .txt"),
    beir({QRELS: None, "other.tsv": ""}, "no qrels", "qrels/test.tsv", "2 .jsonl", "1 .tsv"),
    beir({QRELS: None, "qrels.tsv": f"{HEADER}q9\td1\t1\n"}, "qrels.tsv, line 2", "'q9'"),
    beir({QRELS: "query-id\tcorpus-id\n"}, f"{QRELS}, line 1", r"'query-id\tcorpus-id\tscore'"),
    beir({QRELS: "query-id\titer\tcorpus-id\tscore\n"}, f"{QRELS}, line 1", r"'query-id\tcorpus-id\tscore'"),
    ({"health.xml": ""}, ["1 .xml", "write a .csv or .jsonl", "corpus.jsonl", "queries.jsonl", ".md"], {}),
]

COLLECTION, JUDGED = "0\tzero\n1\tone\n2\ttwo\n", "qrels.dev.small.tsv"
MS_MARCO = {
    "collection.tsv": COLLECTION,
    "queries.dev.small.tsv": "10\twhat is it\n11\twho is it\n",
    JUDGED: "10\t0\t2\t1\n\n11\t0\t0\t2\n",
}


def marco(changes, *named, **options):
    return MS_MARCO | changes, named, options


FOLDERS += [
    marco({JUDGED: "10\t0\t2\n"}, f"{JUDGED}, line 1", "four fields"),
    marco({JUDGED: "10\t0\t2\tyes\n"}, f"{JUDGED}, line 1", "'yes'", "whole number"),
    marco({JUDGED: f"10\t0\t2\t{'1' * 5000}\n"}, f"{JUDGED}, line 1", "'11111"),
    marco({JUDGED: "10\t0\t2\t1\n10\t0\t9\t1\n"}, f"{JUDGED}, line 2", "'9'", "collection.tsv"),
    marco({JUDGED: "10\t0\t2\t1\n19\t0\t2\t1\n"}, f"{JUDGED}, line 2", "'19'", "queries.dev.small.tsv"),
    marco({"queries.dev.small.tsv": "10 what\n"}, "queries.dev.small.tsv, line 1", "1 tab-separated columns"),
    marco({"queries.dev.small.tsv": "10\ta\n10\tb\n"}, "queries.dev.small.tsv, line 2", "'10'", "two texts"),
    marco({"collection.tsv": f"{COLLECTION}2\tagain\n"}, "collection.tsv, line 4", "'2'", "two texts", "'two'"),
    marco({"collection.tsv": COLLECTION.encode() + b"5\tcaf\xe9\n"}, "collection.tsv, line 4, byte 6", "0xe9"),
    marco({"collection.tsv": COLLECTION.replace("two", " ")}, "collection.tsv, line 3", f"{JUDGED}, line 1", "empty"),
    marco({"collection.tsv": "0\tzero\n1\tone\n2"}, "collection.tsv, line 3", "1 tab-separated columns"),
    marco({"collection.tsv": None, "collection.tsv.gz": half(COLLECTION * 99)}, "collection.tsv.gz", "ends too early"),
    marco({}, "'test'", "split from dev.small", split="test"),
    marco({"qrels.train.tsv": "10\t0\t1\t1\n"}, "several splits", "split: dev.small, train"),
    marco({"qrels.train.tsv": "10\t0\t1\t1\n"}, "no queries.train.tsv", "MS MARCO", split="train"),
    marco({JUDGED: None}, "no qrels.SPLIT.tsv"),
]


@pytest.mark.parametrize(("files", "named", "options"), FOLDERS)
def test_a_file_of_a_folder_is_named(tmp_path, files, named, options):
    check_refusal(lambda: read(put(tmp_path, files), **options), str(tmp_path), *named)


@pytest.mark.parametrize("name", ["docs.jsonl", "corpus/part-0.jsonl"])
def test_a_folder_of_queries_without_a_corpus_is_named(tmp_path, name):
    put(tmp_path, {"queries.jsonl": BEIR["queries.jsonl"], name: BEIR["corpus.jsonl"]})
    check_refusal(lambda: next(read_corpus(tmp_path)), "no corpus.jsonl", "BEIR", "2 .jsonl")


def document(name, text, *named, **options):
    return name, text, named, options


@pytest.mark.parametrize(
    ("name", "text", "named", "options"),
    [
        document("a.jsonl", '{"text": "a"}\n{"txt": "b"}\n', "line 2", "'text'", "'txt'", "text_column"),
        document("a.jsonl", '{"text": 3}\n', "line 1", "'text'", "a whole number"),
        document("a.jsonl", '{"text": "a", "id": " "}\n', "line 1", "'id' is empty"),
        document("a.jsonl", '{"text": "a", "id": true}\n', "line 1", "'id'", "true or false"),
        document("a.jsonl", '{"text": "a", "title": ["T"]}\n', "line 1", "'title'", "a list"),
        document("a.jsonl", '{"text": "a", "by": "\\ud800"}\n', "line 1", "'by'", "half a surrogate pair"),
        document("a.jsonl", "\n", "no documents"),
        document("a.jsonl", '{"id": "a", "text": "x"}\n{"id": "b\\nc", "text": ""}\n', "line 2", "the id holds"),
        document("a.csv", "text\n", "no documents"),
        document("a.csv", "1,one\n2,two\n", "line 1", "'text'", "'1', 'one'"),
        document("a.csv", "question,answer,ground_truth\nq,a,b\n", "'answer' or 'ground_truth'", "text_column"),
        document("a.csv", "long,state\nx,y\n", "'text'", "text_column", "data.answer_column"),
        document("a.csv", "key,text\na,b\n", "line 1", "'no'", "'key', 'text'", "id_column", id_column="no"),
        document("a.csv", "key,text\na,b\n", "line 2", "'no'", "'key', 'text'", "title_column", title_column="no"),
        document("a.csv", "q,answer\na,b\n", "line 2", "'no'", "'q', 'answer'", "question-col", question_column="no"),
        document("a.tsv", "1\tone\n", "line 1", "'text'", title_column="no"),
        document("a.csv", "doc_id,text\na,x\na,y\n", "line 3", "'a'", "id_column=NAME", id_column="doc_id"),
        document("a.csv", "text,a,a\n", "line 1", "two columns"),
        document("a.csv", "text,a\nb\n", "line 2", "1 column", "header has 2"),
        document("a.csv", 'text\n"a" b\n', "from line 2", "must be quoted"),
        document("a.csv", "id,text\n..,one\n", "line 2", "'..'"),
        document("a.tsv", "id\tpassage\n1\tone\n", "line 1", "'text'", "'id', 'passage'", "text_column"),
        document("a.tsv", "1\tone\n2\ttwo\tthree\n", "line 2", "3 tab-separated columns"),
        document("a.tsv", "1\tone\n\ttwo\n", "line 2", "id is empty"),
        document("a.tsv", "x" * 600 + "1\tone\n", "line 1", "512 bytes"),
        document("a.txt", "a\n", "into sentences", pool="sentences"),
        document("a.json", "{}", "pool is 'words'", pool="words"),
        document("a.doc", "a", "'.doc'", "known are .json"),
        document(
            "a.jsonl", '{"text": "0"}\n{"text": "1", "id": "x"}\n{"text": "3", "id": "x"}', "line 3", "'x'", "line 2"
        ),
        document("a.jsonl", '{"text": "of the next line", "id": 2}\n{"text": "b"}\n', "line 2", "'2'", "line 1"),
    ],
)
def test_a_corpus_is_named_with_line_and_column(tmp_path, name, text, named, options):
    check_refusal(lambda: list(read_corpus(written(tmp_path / name, text), **options)), *named)
