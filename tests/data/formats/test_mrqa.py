import pytest
from helpers import written
from refusals import check_refusal
from small_mrqa import HEADER, asked, line

from endx_jax.data import read
from endx_jax.data.formats import mrqa
from endx_jax.data.formats.mrqa import unmark
from endx_jax.data.reqa import convert
from endx_jax.data.sets.paragraphs import AnswerSpan, Question

TITLED = "[PAR] [TLE] Ann Lee [SEP] Ann Lee sings. She eats. [PAR] [TLE] Bob Ray [SEP] Bob Ray eats. He – 漢 – sings."


@pytest.fixture
def write(tmp_path):
    return lambda *rows, header=True: str(written(tmp_path / "x.jsonl", [HEADER] * header + [*rows]))


def test_the_first_span_of_the_first_answer_counts_and_marks_are_gone(write):
    question = asked("q1", "who eats?", TITLED, ("Ray", "Ray eats", "Ray [SEP]"), ("She",))
    (found,) = mrqa.mrqa_paragraphs(write(line(TITLED, question)))
    assert found.context == "Ann Lee Ann Lee sings. She eats. Bob Ray Bob Ray eats. He – 漢 – sings."
    (answer,) = found.questions[0].answers
    assert answer == AnswerSpan("Ray", found.context.index("Ray eats"))
    assert found.article == "context of q1"
    question = asked("q1", "what?", TITLED, ("eats. [PAR] [TLE] Bob",))
    assert convert(write(line(TITLED, question))).records.candidates == ("She eats.",)


def test_sentences_end_at_marks_and_a_context_without_marks_is_as_it_was(write):
    path = write(line(TITLED, asked("q1", "who eats?", TITLED, ("She",))))
    records = convert(path, "sentences").records
    assert records.candidates[:3] == ("Ann Lee", "Ann Lee sings.", "She eats.")
    assert (records.candidates[3:], records.qrels) == (("Bob Ray", "Bob Ray eats.", "He – 漢 – sings."), ((2,),))
    context = " (CNN) -- It rains.\n\n\n\nWax on, wax off: Why?\n"
    (found,) = mrqa.mrqa_paragraphs(write(line(context, asked("q1", "what?", context, ("Wax on",)))))
    assert (found.context, found.sentences) == (context, None)
    records = convert(write(line(context, asked("q1", "what?", context, ("Wax on",)))), "sentences").records
    assert (records.candidates, records.qrels) == (("(CNN) -- It rains.", "Wax on, wax off: Why?"), ((1,),))


def test_all_spans_in_the_order_of_the_context(write):
    question = asked("q1", "who?", TITLED, ("Ray", "Ray eats", "Ray [SEP]"), ("She",), ("Ray", "Ray eats"))
    (found,) = mrqa.contexts(write(line(TITLED, question)), every_span=True)
    text = found.unmarked.text
    places = (("She", "She"), ("Ray", "Ray Bob"), ("Ray", "Ray eats"))
    answers = tuple(AnswerSpan(answer, text.index(place)) for answer, place in places)
    assert found.questions == (Question("q1", "who?", answers),)


def test_contexts_without_text_or_questions_are_passed_over(write):
    rows = [line("", asked("q0", "?", "")), line("[DOC] ", asked("q1", "?", "")), line("Nobody asks.")]
    context = "Ann sings."
    path = write(*rows, line(context, asked("q2", "who?", context, ("Ann",)), asked("q3", "unanswered?", context)))
    (found,) = mrqa.mrqa_paragraphs(path)
    assert [question.answers for question in found.questions] == [(AnswerSpan("Ann", 0),), ()]
    assert read(path).questions == ("who?",)


def test_a_line_is_in_memory_at_a_time(write):
    path = write(line("Ann sings.", asked("q1", "who?", "Ann sings.", ("Ann",))))
    with open(path, "a") as file:
        file.write("{")
    found = mrqa.mrqa_paragraphs(path)
    assert next(found).context == "Ann sings."
    check_refusal(lambda: next(found), "x.jsonl", "line 3", "column 2")


def test_a_place_in_a_mark_is_the_start_of_the_next_piece_or_the_end():
    marked = "[PAR] [TLE] Ann Lee [SEP] She wrote Dr. No. [PAR] [TLE] Bob [SEP] Bob reads. [PAR]"
    found = unmark(marked)
    assert found.place(0) == 0
    assert found.text[found.place(marked.index("[SEP] Bob") + 2) :] == "Bob reads."
    assert found.place(len(marked) - 1) == len(found.text)
    start, end = found.span(marked.index("No."), marked.index("Bob [SEP]") + 3)
    assert found.text[start:end] == "No. Bob"
    start, end = found.span(marked.index("[PAR] [TLE] Bob"), marked.index("Bob [SEP]"))
    assert start == end


@pytest.mark.parametrize("tag", ["<P>", "</P>", '<Td_colspan="2">', '<Td_colspan="2"_rowspan="10">', "<H2>", "[DOC]"])
def test_tags_that_stand_apart_are_marks(tag):
    assert unmark(f"{tag} Ann {tag} sings . {tag}").text == "Ann sings ."


def test_long_white_space_takes_linear_time():
    text = "a" + " " * 1_000_000 + "b"  # quadratic time would be half a day
    assert unmark(text).text == text
    assert unmark(f"{' ' * 1_000_000}[PAR]{' ' * 1_000_000}b").text == "b"
