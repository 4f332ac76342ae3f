import json
import os
import pathlib

import pytest
from helpers import written
from refusals import check_refusal
from small_squad import asked

from endx_jax.data.reqa import convert, from_squad
from endx_jax.data.sets.paragraphs import Conversion
from endx_jax.errors import EndxError

CATS = "Cats sleep a lot. Dr. Doe says so. They also eat."
SLEEP, SAYS, EAT = "Cats sleep a lot.", "Dr. Doe says so.", "They also eat."


def paragraph(context: str, *questions: dict) -> dict:
    return {"context": context, "qas": list(questions)}


def converted(folder: pathlib.Path, *paragraphs: dict, pool: str = "answers") -> Conversion:
    path = written(folder / "x.json", json.dumps({"data": [{"title": "T", "paragraphs": list(paragraphs)}]}))
    return convert(path, pool)


def right(conversion: Conversion) -> dict[str, list[str]]:
    records = conversion.records
    rows = zip(records.questions, records.qrels, strict=True)
    return {question: [records.candidates[n] for n in found] for question, found in rows}


def test_an_answer_is_in_the_sentence_in_which_it_starts(tmp_path):
    starts = {CATS.index("Cats"): SLEEP, CATS.index("lot"): SLEEP, CATS.index(". They"): SAYS, CATS.index("eat."): EAT}
    questions = [asked(f"i{start}", f"q{start}", start) for start in starts]
    found = right(converted(tmp_path, paragraph(CATS, *questions)))
    assert found == {f"q{start}": [sentence] for start, sentence in starts.items()}
    question = asked("i0", "q?")
    question["answers"] = [{"text": "says so. They also", "answer_start": CATS.index("says")}]
    assert right(converted(tmp_path, paragraph(CATS, question))) == {"q?": [SAYS]}
    eat, sleep = CATS.index("They"), CATS.index("sleep")
    conversion = converted(tmp_path, paragraph(CATS, asked("i0", "q?", eat, sleep, eat + 5)))
    assert (right(conversion), conversion.rows) == ({"q?": [SLEEP, EAT]}, 2)


def test_equal_questions_are_merged_and_their_rows_counted_apart(tmp_path):
    first = paragraph(CATS, asked("i0", "q?", 0), asked("i1", "q?", 0), asked("i2", "q? ", 0))
    second = paragraph("Dogs bark.", asked("i3", "q?", 0))
    conversion = converted(tmp_path, first, second)
    assert right(conversion) == {"q?": [SLEEP, "Dogs bark."], "q? ": [SLEEP]}
    assert (conversion.records.question_ids, conversion.rows) == (("i0", "i2"), 4)
    assert len(conversion.records.pairs) == 3
    first = paragraph("Dogs bark. It rains.", asked("i0", "one?", 11))
    second = paragraph("It rains. Cats sleep.", asked("i1", "two?", 0))
    records = converted(tmp_path, first, second, pool="sentences").records
    assert records.candidates == ("Dogs bark.", "It rains.", "Cats sleep.")
    assert (records.candidate_ids, records.qrels) == (("s0.0", "s0.1", "s1.1"), ((1,), (1,)))


def test_the_pool_of_answers_is_what_is_right_of_the_pool_of_sentences(tmp_path):
    paragraphs = [paragraph("Nobody asks."), paragraph(CATS, asked("i0", "late?", 36), asked("i1", "early?", 0))]
    sentences = converted(tmp_path, *paragraphs, pool="sentences").records
    assert (sentences.candidates, sentences.candidate_ids) == ((SLEEP, SAYS, EAT), ("s1.0", "s1.1", "s1.2"))
    assert sentences.qrels == ((2,), (0,))
    answers = converted(tmp_path, *paragraphs, pool="answers").records
    assert (answers.candidates, answers.candidate_ids) == ((SLEEP, EAT), ("s1.0", "s1.2"))
    assert answers.qrels == ((1,), (0,))
    assert answers.questions == sentences.questions == ("late?", "early?")


def test_answers_between_sentences_and_questions_without_any_are_left_out_and_counted(tmp_path):
    gap = CATS.index(" Dr.")
    questions = [asked("i0", "q?", gap, 0), asked("i1", "lost?", gap), asked("i2", "lost?", gap), asked("i3", "z?", 0)]
    conversion = converted(tmp_path, paragraph(CATS, *questions))
    assert right(conversion) == {"q?": [SLEEP], "z?": [SLEEP]}
    assert (conversion.records.question_ids, conversion.unplaced_answers) == (("i0", "i3"), 3)
    assert (conversion.unplaced_questions, conversion.rows) == (1, 2)
    with pytest.raises(EndxError, match=r"x\.json: no question in the file has an answer that starts in a sentence"):
        converted(tmp_path, paragraph(CATS, asked("i0", "q?", CATS.index(" Dr."))))
    impossible = paragraph("Dogs bark.", {"id": "i0", "question": "why?", "answers": [], "is_impossible": True})
    conversion = converted(tmp_path, impossible, paragraph(CATS, asked("i1", "q?", 0)), pool="sentences")
    assert conversion.records.candidates == ("Dogs bark.", SLEEP, SAYS, EAT)
    assert (right(conversion), conversion.unplaced_questions) == ({"q?": [SLEEP]}, 0)


def test_places_count_white_space_and_an_unknown_pool_is_refused(tmp_path):
    context = "  One goes\non. Two\nends. "
    questions = asked("i0", "one?", 2), asked("i1", "on?", context.index("on.")), asked("i2", "two?", 15)
    found = right(converted(tmp_path, paragraph(context, *questions)))
    assert found == {"one?": ["One goes\non."], "on?": ["One goes\non."], "two?": ["Two\nends."]}
    check_refusal(lambda: from_squad("x.json", pool="sentence"), "'sentence'")


def counts(conversion: Conversion) -> tuple[int, ...]:
    records = conversion.records
    return len(records.questions), len(records.candidates), conversion.rows, len(records.pairs)


# ENDX, Table 1 prints for the test split 10,539 questions and 7,087 answers; ReQA's own index, which counts equal
# sentences of different paragraphs apart, has 10,250 entries.
@pytest.mark.parametrize(("pool", "size"), [("answers", 7086), ("sentences", 10246)])
def test_counts_of_squad_dev(test_data, pool, size):
    conversion = convert(squad(test_data, "dev"), pool)
    assert counts(conversion) == (10539, size, 11418, 11388)
    assert (conversion.unplaced_answers, conversion.unplaced_questions) == (0, 0)


# ENDX, Table 1: 87,355 questions, 58,934 answers, 87,599 pairs.
@pytest.mark.slow
@pytest.mark.parametrize(("pool", "size"), [("answers", 58944), ("sentences", 91617)])
def test_counts_of_squad_train(test_data, pool, size):
    assert counts(convert(squad(test_data, "train"), pool)) == (87355, size, 87599, 87446)


def squad(folder: pathlib.Path, split: str) -> str:
    return os.fspath(folder / f"data/squad/{split}-v1.1.json.gz")


def test_a_questions_group_is_its_article_and_its_hard_negatives_the_rest_of_its_paragraphs(tmp_path):
    article = {"title": "Pets", "paragraphs": [paragraph(CATS, asked("i0", "q?", 0), asked("i1", "r?", 18))]}
    other = {"paragraphs": [paragraph("Dogs bark. They run.", asked("i2", "q?", 0), asked("i3", "s?", 0, 11))]}
    path = written(tmp_path / "x.json", json.dumps({"data": [article, other]}))
    for pool in ("answers", "sentences"):
        records = from_squad(path, pool)
        groups = dict(zip(records.questions, records.groups, strict=True))
        assert groups == {"q?": "Pets", "r?": "Pets", "s?": "article 1"}
        rows = zip(records.questions, records.hard_negatives, strict=True)
        hard = {question: {records.candidates[n] for n in found} for question, found in rows}
        everything = {"q?": {SAYS, EAT, "They run."}, "r?": {SLEEP, EAT}, "s?": set()}
        assert hard == {question: found & set(records.candidates) for question, found in everything.items()}
    assert EAT in records.candidates
    assert EAT not in from_squad(path, "answers").candidates
