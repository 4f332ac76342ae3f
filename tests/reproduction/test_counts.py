"""Small parts of reading-comprehension data."""

import dataclasses

from small_records import records_of

from reproduction.counts import of_few_paragraphs


def test_few_paragraphs_takes_a_question_of_each_paragraph_in_turn():
    # Paragraph 0 has three questions, paragraph 1 two, paragraph 2 one; each question has the one sentence `sP.Q`.
    names = ("s0.0", "s0.1", "s0.2", "s1.0", "s1.1", "s2.0")
    records = dataclasses.replace(records_of([(n,) for n in range(6)], names), candidate_ids=names)
    found = of_few_paragraphs(records, paragraphs=2, pairs=3)
    assert found.candidates == ("s0.0", "s1.0", "s0.1")
