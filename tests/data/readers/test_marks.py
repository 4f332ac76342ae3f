import pytest

from endx_jax.data.readers.marks import unmark

HOTPOT = "[PAR] [TLE] Ann Lee [SEP] Ann Lee sings. She wrote Dr. No. [PAR] [TLE] Bob [SEP] Bob reads."


def test_marks_go_and_a_space_stands_between_what_is_left():
    found = unmark(HOTPOT)
    assert found.text == "Ann Lee Ann Lee sings. She wrote Dr. No. Bob Bob reads."
    assert [found.text[start:end] for start, end in found.pieces] == [
        "Ann Lee",
        "Ann Lee sings. She wrote Dr. No.",
        "Bob",
        "Bob reads.",
    ]


def test_each_character_is_found_where_it_has_gone():
    found = unmark(HOTPOT)
    for word in ("sings", "wrote", "No.", "reads"):
        place = found.place(HOTPOT.index(word))
        assert found.text[place : place + len(word)] == word
    second = HOTPOT.index("Bob reads")
    assert found.text[found.place(second) :] == "Bob reads."


def test_a_place_in_a_mark_is_the_start_of_what_follows():
    found = unmark(HOTPOT)
    assert found.place(0) == 0
    assert found.text[found.place(HOTPOT.index("[SEP] Bob") + 2) :] == "Bob reads."
    ending = unmark("Ann sings. [PAR]")
    assert ending.place(12) == len("Ann sings.")


def test_a_span_over_a_mark_holds_both_sides_and_none_of_it():
    found = unmark(HOTPOT)
    start, end = found.span(HOTPOT.index("No."), HOTPOT.index("Bob [SEP]") + 3)
    assert found.text[start:end] == "No. Bob"
    start, end = found.span(HOTPOT.index("[PAR] [TLE] Bob"), HOTPOT.index("Bob [SEP]"))
    assert start == end


def test_no_sentence_runs_over_a_mark():
    found = unmark(HOTPOT)
    assert [found.text[start:end] for start, end in found.sentences()] == [
        "Ann Lee",
        "Ann Lee sings.",
        "She wrote Dr. No.",
        "Bob",
        "Bob reads.",
    ]


@pytest.mark.parametrize("tag", ["<P>", "</P>", '<Td_colspan="2">', '<Td_colspan="2"_rowspan="10">', "<H2>", "[DOC]"])
def test_tags_that_stand_apart_are_marks(tag):
    assert unmark(f"{tag} Ann {tag} sings . {tag}").text == "Ann sings ."


@pytest.mark.parametrize("text", ["a <b> c", "List<P> of", "[par] [TLE]x", "x <P", "", " two  spaces ", "Ä\n[DOCX] 漢"])
def test_nothing_else_is_touched(text):
    found = unmark(text)
    assert found.text == text
    assert found.place(len(text)) == len(text)


def test_marks_alone_leave_nothing():
    found = unmark("[DOC] [TLE] ")
    assert (found.text, found.pieces, found.place(5)) == ("", (), 0)
