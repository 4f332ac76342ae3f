import gzip

import pytest

from endx_jax.data.answered import Answered, read_answered, strings
from endx_jax.errors import EndxError


def refusal(call) -> str:
    with pytest.raises(EndxError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("packed", ["", ".gz"])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("nq.jsonl", '{"question": "who", "answer": ["A \\"B\\"", "C"]}\n{"question": "when", "answer": ["D\'s"]}\n'),
        ("nq.jsonl", '{"question": "who", "answers": ["A \\"B\\"", "C"]}\n{"question": "when", "answers": ["D\'s"]}\n'),
        ("dpr.qas.csv", "who\t['A \"B\"', 'C']\nwhen\t[\"D's\"]\n"),
        ("dpr.tsv", 'who\t"[\'A ""B""\', \'C\']"\nwhen\t"[""D\'s""]"\n'),  # as csv quotes
    ],
)
def test_questions_with_answers(tmp_path, name, text, packed):
    path = tmp_path / (name + packed)
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    assert read_answered(str(path)) == [Answered("q0", "who", ('A "B"', "C")), Answered("q1", "when", ("D's",))]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[]", []),
        ("['a', 'b',]", ["a", "b"]),
        (r"""['it\'s', "say \"hi\"", 'a\\b\n\t']""", ["it's", 'say "hi"', "a\\b\n\t"]),
        (r"['\xe9 \u0107 \U0001f600']", ["é ć 😀"]),
        ("['', \"\"]", ["", ""]),
        ("['a, [b]', 'c']", ["a, [b]", "c"]),
    ],
)
def test_lists_in_pythons_notation(text, found):
    assert strings(text, "x") == found == eval(text)


@pytest.mark.parametrize(
    "text", ["a", "['a'", "['a' 'b']", "[a]", "[__import__('os')]", "['a', 3]", "['a\\']", "{'a'}"]
)
def test_what_is_no_list_of_strings_is_refused_and_never_run(text):
    assert "file, line 3: the answers " in refusal(lambda: strings(text, "file, line 3"))


def test_unknown_escapes_are_refused():
    assert refusal(lambda: strings(r"['\q']", "x")) == r"x: unknown escape \q in an answer"


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("a.tsv", "q\t['a']\nr\t[]\n", "line 2: the question has no answer"),
        ("a.tsv", "q\t['a']\nr\n", "line 2: 1 tab-separated columns where each line has a question and its answers"),
        ("a.tsv", "q\t['a']\n\t['b']\n", "line 2: the question is empty"),
        ("a.jsonl", '{"question": "q", "answer": ["a"]}\n{"question": "q"}\n', "line 2: no 'answer' among 'question'"),
        ("a.jsonl", '{"question": "q", "answer": ["a", 1]}', "line 1: 'answer', item 1 must be a string, not a whole"),
        ("a.jsonl", '{"question": "q", "answer": ["a"', "line 1, column 33: broken JSON"),
    ],
)
def test_broken_lines_are_refused_by_number(tmp_path, name, text, reason):
    path = tmp_path / name
    path.write_text(text)
    assert refusal(lambda: read_answered(str(path))).startswith(f"{path}, {reason}")
