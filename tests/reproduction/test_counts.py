"""Small parts of reading-comprehension data."""

from endx_jax.data.sets.records import RetrievalSet
from reproduction.counts import of_few_paragraphs


def test_few_paragraphs_takes_a_question_of_each_paragraph_in_turn():
    # Paragraph 0 has three questions, paragraph 1 two, paragraph 2 one; each question has the one sentence `sP.Q`.
    names = ["s0.0", "s0.1", "s0.2", "s1.0", "s1.1", "s2.0"]
    questions, ids = (f"about {name}" for name in names), (f"q{n}" for n in range(6))
    records = RetrievalSet((*questions,), (*names,), tuple((n,) for n in range(6)), (*ids,), (*names,))
    found = of_few_paragraphs(records, paragraphs=2, pairs=3)
    assert found.candidate_ids == ("s0.0", "s1.0", "s0.1")
