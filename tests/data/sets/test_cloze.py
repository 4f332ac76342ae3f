from helpers import refused

from endx_jax.data.sets.cloze import cloze_questions, document_of, make_questions
from endx_jax.data.sets.documents import Document

TEXT = "Cats sleep most of the day. Dogs bark at night and at noon. Fish. Birds sing in the early morning."
SENTENCES = {"Cats sleep most of the day.", "Dogs bark at night and at noon.", "Birds sing in the early morning."}


def row(name: str, text: str, title: str = "", **metadata) -> Document:
    """A document as `corpus` reads a row."""
    return Document(name, f"{title} {text}".strip(), ({"title": title} if title else {}) | metadata)


def test_sentences_are_questions_and_leave_the_passage_but_for_one():
    questions, passage = make_questions(row("a", TEXT), 2, 1.0)
    assert len(questions) == 2
    assert set(questions) < SENTENCES  # not `Fish.`, which is too short
    (third,) = SENTENCES - set(questions)
    assert set(passage.split(". ")) == {third.removesuffix("."), "Fish."} or set(passage.split(". ")) == {"Fish", third}
    questions, passage = make_questions(row("a", TEXT, "Animals"), 2, 0.0)
    assert (len(questions), passage) == (3, f"Animals {TEXT}")
    questions, passage = make_questions(row("a", TEXT), 100, 1.0)
    assert (set(questions), passage) == (SENTENCES, "Fish.")
    assert make_questions(row("a", "One sentence of five words."), 100, 1.0)[0] == []
    questions, passage = make_questions(row("a", "One sentence of five words.", "Title"), 100, 1.0)
    assert (questions, passage) == (["Title"], "One sentence of five words.")


def test_titles_and_headings_are_questions():
    text = "## How to feed them\nThey eat fish.\n\n## Beds\n\nThey sleep in a basket that is soft."
    questions, passage = make_questions(row("a", text, "Cats", source="cats.md"), 0, 1.0)
    assert questions == ["Cats", "Cats: How to feed them", "Cats: Beds"]
    assert passage.split() == "They eat fish. They sleep in a basket that is soft.".split()


def test_a_share_of_the_questions_is_removed_the_same_in_every_call():
    passages = [row(f"{n}", f"The number of this one is {n}. Here is more.") for n in range(400)]
    found = [make_questions(passage, 1, 0.75) for passage in passages]
    removed = sum(questions[0] not in passage for questions, passage in found)
    assert 0.68 < removed / 400 < 0.82
    assert found == [make_questions(passage, 1, 0.75) for passage in passages]


def test_a_document_is_a_title_in_a_file_or_a_passage_without_title():
    chapters = [row("a", "x", "T", source="f"), row("b", "y", "T", source="f"), row("c", "z", "T", source="g")]
    names = [document_of(chapter) for chapter in chapters]
    assert names[0] == names[1] != names[2]
    assert document_of(row("d", "x", source="web")) != document_of(row("e", "x", source="web"))


def test_a_title_is_a_question_for_all_passages_of_its_document():
    passages = [row("a", TEXT, "Animals"), row("b", "Many live in the zoo.", "Animals"), row("c", "Red.", "Colours")]
    records = cloze_questions(passages, "docs", 0, 1.0)
    assert (records.questions, records.qrels) == (("Animals", "Colours"), ((0, 1), (2,)))
    assert (records.candidate_ids, len(set(records.groups))) == (("a", "b", "c"), 2)


def test_what_occurs_in_several_documents_is_left_out():
    notice = "Copyright of all of this is with the authors. All rights reserved, worldwide."
    passages = [row(title, f"{title} is what this page describes here. {title}.", title) for title in ("Cats", "Dogs")]
    passages += [row(f"notice of {title}", notice, title) for title in ("Cats", "Dogs")]
    passages.append(row("site", "One more page is here.", "Cats", source="elsewhere"))
    records = cloze_questions(passages, "docs", 5, 1.0)
    assert not any("Copyright" in text for text in (*records.questions, *records.candidates))
    assert "Cats" not in records.questions  # the title of two documents
    assert "Dogs" in records.questions
    assert {len(right) for right in records.qrels} == {1}


def test_documents_that_make_no_pairs_are_refused():
    for passages, message in (
        ([row("a", "Short."), row("b", "")], "docs: no titles, headings or passages of two sentences to train on"),
        ([row("a", "One.", "T"), row("b", "Two.", "T")], "docs: all passages that make questions are of one document"),
    ):
        refused(message, cloze_questions, passages, "docs", 2, 0.9)
