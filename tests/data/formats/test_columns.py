import csv
import json

import pytest
from helpers import refusal, written

from endx_jax.data import read
from endx_jax.data.formats import read_corpus
from endx_jax.data.formats.columns import strings


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
    assert strings(text) == found == eval(text)


NOT_LISTS = [
    "['a' 'b']",
    "['a'\n 'b']",
    "a",
    "['a'",
    "[a]",
    "[__import__('os')]",
    "['a', 3]",
    "['a\\']",
    "{'a'}",
    "['\0']",
    "[" * 99_999,
]


@pytest.mark.parametrize("text", [*NOT_LISTS, "['a']" * 10**5])
def test_other_python_expressions_are_refused_and_never_run(text):
    assert strings(text) is None


def said(role, text):
    return {"role": role, "content": text}


USER, PARTS = said("user", "q"), said("user", [{"type": "text", "text": "q"}])
CHAT = {"messages": [said("system", "Be kind."), USER, said("assistant", "a")]}
SHAREGPT = {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}
SWIFT = {"messages": [USER], "positive_messages": [[said("assistant", "a")], [said("user", "b")]]}
LLAMA = {"queries": {"1": "q"}, "corpus": {"x": "a", "y": "b"}, "relevant_docs": {"1": ["x", "y"]}, "mode": "text"}
TURNS = [USER, said("assistant", None), said("tool", "t"), said("assistant", "a"), said("user", "r")]


@pytest.mark.parametrize(
    ("row", "questions", "answers"),
    [
        (CHAT, "q", "a"),
        (CHAT | {"messages": [PARTS, *CHAT["messages"][2:]], "prompt": "q"}, "q", "a"),
        ({"messages": [*TURNS, said("assistant", "b")]}, "qr", "ab"),
        (SHAREGPT, "q", "a"),
        ({"conversations": [{"from": "Human", "value": "q"}, {"from": "chatgpt", "value": "a"}]}, "q", "a"),
        (SWIFT, "q", "ab"),
        ({"messages": USER, "positive_messages": said("user", "a")}, "q", "a"),
        ({"prompt": [USER], "completion": [said("assistant", "a")]}, "q", "a"),
        ({"user_input": "q", "response": "x", "reference": "a", "reference_contexts": ["c"]}, "q", "a"),
        ({"input": "q", "actual_output": "x", "expected_output": "a", "context": ["c"]}, "q", "a"),
        ({"instruction": "q", "input": "", "output": "a"}, "q", "a"),
        ({"instruction": "q ", "input": "r", "output": "a"}, ["q\nr"], "a"),
        ({"question": "q", "ground_truth": "a", "contexts": ["c"]}, "q", "a"),
        ({"pergunta": "q", "resposta_esperada": "a"}, "q", "a"),
        ({"question": "q", "answers": "['a', \"b\"]"}, "q", "ab"),
        ({"question": '["q", "r"]', "answer": '["a", "\\ud83d\\ude00"]'}, "qr", "a😀"),
        ({"question": "q", "answer": "[Removed]"}, "q", ["[Removed]"]),
    ],
)
def test_rows_of_other_tools_are_read(tmp_path, row, questions, answers):
    records = read(written(tmp_path / "x.jsonl", [row]))
    assert (records.questions, records.candidates) == ((*questions,), (*answers,))
    if all(isinstance(value, str) for value in row.values()):
        with (tmp_path / "x.csv").open("w", newline="") as file:
            csv.writer(file).writerows([row, row.values()])
        assert read(tmp_path / "x.csv") == records
    documents = [*read_corpus(tmp_path / "x.jsonl")]
    assert [document.text for document in documents] == [*answers]


def test_negatives_of_swift_are_hard_negatives(tmp_path):
    rows = [SWIFT | {"negative_messages": [[said("assistant", "c")]]}]
    rows += [{"query": "r", "response": "d", "rejected_response": ["a"]}]
    assert read(written(tmp_path / "x.jsonl", rows)).hard_negatives == ((2,), (0,))


def test_a_label_of_a_chat_is_that_of_its_last_reply(tmp_path):
    chats = ([*TURNS, said("assistant", "b")], False), ([USER, said("assistant", "c")], True)
    chats += (([said("user", "r"), said("assistant", "d")], 1),)
    rows = [{"messages": chat, "label": label} for chat, label in chats]
    records = read(written(tmp_path / "x.jsonl", rows))
    assert (records.candidates, records.hard_negatives) == (("c", "d", "b"), ((), (2,)))


def test_a_qa_dataset_of_llama_index_is_read(tmp_path):
    path = written(tmp_path / "x.json", json.dumps(LLAMA, indent=4))
    records = read(path)
    assert (records.questions, records.candidates, records.qrels) == (("q",), ("a", "b"), ((0, 1),))
    assert records.question_ids + records.candidate_ids == ("1", "x", "y")
    assert [document.id for document in read_corpus(path)] == ["x", "y"]
    more = {"queries": {"1": "q", "2": "r"}, "corpus": {"x": "a", "y": ""}, "relevant_docs": {"1": ["x"], "2": ["y"]}}
    path = written(tmp_path / "x.json", json.dumps(more))
    assert "relevant_docs['2']: 'y' is empty" in refusal(read, path)
    assert read(path, skip_invalid=True).candidates == ("a", "")


def test_a_chat_of_several_questions_is_reported(tmp_path, caplog):
    read(written(tmp_path / "x.jsonl", [CHAT, {"messages": [*TURNS, said("assistant", "b")]}]))
    assert "1 chat with several questions: each is paired with the reply after it, without what was" in caplog.text
