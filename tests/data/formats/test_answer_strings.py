import dataclasses
import gzip

import pytest
from helpers import refusal, written

from endx_jax.data.formats import ReadOptions, open_data
from endx_jax.data.formats.answer_strings import contains_answer, read_answered, searchable, tokens
from endx_jax.data.sets.examples import Judgements


def test_ms_marco_and_beir_are_judged_without_their_corpus(tmp_path):
    marco, beir = tmp_path / "marco", tmp_path / "beir"
    (beir / "qrels").mkdir(parents=True)
    marco.mkdir()
    (marco / "collection.tsv").touch()
    (marco / "queries.dev.tsv").write_text("1\tone\n2\ttwo\n3\tone\n")
    (marco / "qrels.dev.tsv").write_text("2 0 b 1\n1 0 a 1\n1 0 b 0\n2 0 c 1\n3 0 a 1\n")
    (beir / "corpus.jsonl").touch()
    queries = ['{"_id": "1", "text": "one"}', '{"_id": "2", "text": "two"}', '{"_id": "3", "text": "one"}']
    (beir / "queries.jsonl").write_text("\n".join(queries))
    qrels = "query-id\tcorpus-id\tscore\n2\tb\t1\n1\ta\t1\n1\tb\t0\n2\tc\t1\n2\tb\t1\n3\ta\t1\n"
    (beir / "qrels" / "dev.tsv").write_text(qrels)
    asked, right = ("two", "one", "one"), ({"b": 1, "c": 1}, {"a": 1}, {"a": 1})
    expected = Judgements(("2", "1", "3"), asked, right, ((),) * 3)
    assert open_data(marco, ReadOptions(split="dev")).judgements() == expected
    assert open_data(beir).judgements() == dataclasses.replace(expected, excluded=(("2",), ("1",), ("3",)))
    (beir / "qrels" / "dev.tsv").write_text(qrels + "9\ta\t1\n")
    assert refusal(lambda: open_data(beir, ReadOptions(split="dev")).judgements()).endswith(
        "dev.tsv, line 8: query '9' is not in queries.jsonl"
    )


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
    path = written(tmp_path / (name + packed), gzip.compress(text.encode()) if packed else text.encode())
    found = [(one.id, one.question, one.right) for one in read_answered(str(path))]
    assert found == [("q0", "who", ['A "B"', "C"]), ("q1", "when", ["D's"])]


def test_tokens_are_runs_of_letters_digits_and_marks_and_single_other_characters():
    assert tokens("U.S.A.'s 1,000 cafés_x") == [
        *("u", ".", "s", ".", "a", ".", "'", "s", "1", ",", "000", "cafe\N{COMBINING ACUTE ACCENT}s", "_", "x")
    ]
    # Neither kinds of space nor control and format characters are tokens.
    assert tokens("a\N{NO-BREAK SPACE}b\N{ZERO WIDTH SPACE}c\x07d\te") == ["a", "b", "c", "d", "e"]
    assert tokens("देवनागरी №5") == ["देवनागरी", "№", "5"]
    passage, answers = "a b a b c , a b - c", ["a b c", "b , a", "b - c", "c a", "b a b c ,", "a b - c d"]
    words = tokens(passage)
    for answer in map(tokens, answers):
        naive = any(words[at : at + len(answer)] == answer for at in range(len(words)))
        assert contains_answer(searchable(passage), [searchable(" ".join(answer))]) == naive


@pytest.mark.parametrize(
    ("passage", "answers", "found"),
    [
        ("It was made in New York City.", ["new york"], True),
        ("It was made in NEW-YORK.", ["New York"], False),  # the dash stands between
        ("It was made in new-york.", ["New - York"], True),  # spaces are no tokens
        ("The newly built York", ["new york"], False),
        ("Yorkshire", ["York"], False),  # token by token, not letter by letter
        ("the 1990s", ["1990"], False),
        ("caf\N{LATIN SMALL LETTER E WITH ACUTE}", ["CAFE\N{COMBINING ACUTE ACCENT}"], True),  # composed or not
        ("caf\N{LATIN SMALL LETTER E WITH ACUTE}", ["cafe"], False),
        ("one two three", ["two one", "three"], True),  # any of them
        ("one two three", [], False),
        ("one two three", ["\N{ZERO WIDTH SPACE}", ""], False),  # nothing to look for is nowhere
        ("", ["one"], False),
    ],
)
def test_an_answer_is_there_where_its_tokens_are_in_a_row(passage, answers, found):
    assert contains_answer(searchable(passage), [searchable(answer) for answer in answers]) == found
