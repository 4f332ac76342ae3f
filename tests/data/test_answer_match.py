import pytest

from endx_jax.data.answer_match import holds, seamed, tokens


def test_tokens_are_runs_of_letters_digits_and_marks_and_single_other_characters():
    assert tokens("U.S.A.'s 1,000 cafés_x") == [
        *("u", ".", "s", ".", "a", ".", "'", "s", "1", ",", "000", "cafe\N{COMBINING ACUTE ACCENT}s", "_", "x")
    ]
    # Neither kinds of space nor control and format characters are tokens.
    assert tokens("a\N{NO-BREAK SPACE}b\N{ZERO WIDTH SPACE}c\x07d\te") == ["a", "b", "c", "d", "e"]
    assert tokens("देवनागरी №5") == ["देवनागरी", "№", "5"]


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
    assert holds(seamed(passage), [seamed(answer) for answer in answers]) == found


def test_as_many_tokens_as_a_naive_search_finds():
    passage, answers = "a b a b c , a b - c", ["a b c", "b , a", "b - c", "c a", "b a b c ,", "a b - c d"]
    words = tokens(passage)
    for answer in map(tokens, answers):
        naive = any(words[at : at + len(answer)] == answer for at in range(len(words)))
        assert holds(seamed(passage), [seamed(" ".join(answer))]) == naive
