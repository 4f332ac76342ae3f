import math

import numpy as np
from helpers import texts, token_table

from endx_jax.data.batches.idf import idf_of_sides, inverse_document_frequencies
from endx_jax.data.tokenization import TextProcessor, Tokenizer


def test_by_hand_and_counted_one_by_one():
    # Token 1 is in all four documents, 2 in two (thrice in one of them), 3 in one, 4 in none.
    tables = [token_table([1, 2, 2, 2], [1, 3]), token_table([1], [2, 1])]
    found = inverse_document_frequencies(tables, 5)
    np.testing.assert_allclose(found, [math.log(4), 0, math.log(2), math.log(4), math.log(4)], rtol=1e-6)
    assert found.dtype == np.float32
    rows = texts(np.random.default_rng(1).integers(1, 30, 200))
    found = inverse_document_frequencies([token_table(*rows[:150]), token_table(*rows[150:])], 60)
    for token in range(60):
        count = sum(token in row for row in rows)
        assert found[token] == np.float32(math.log(200 / max(count, 1)))


def test_the_documents_of_both_sides_count_on_either(tiny_bert):
    tokenizer = Tokenizer(tiny_bert)
    processors = {"question": TextProcessor(tokenizer, 16, "the "), "answer": TextProcessor(tokenizer, 16)}
    asked = {"question": ["cat", "dog"], "answer": ["a cat", "the mat"]}
    found = idf_of_sides(asked, processors, {"question": 200, "answer": 200})
    ids = {word: int(tokenizer([word], 9).ids[1]) for word in ("cat", "dog", "the")}
    expected = {"cat": math.log(2), "dog": math.log(4), "the": math.log(4 / 3)}  # the prompt is a part of each question
    for side in processors:
        assert {word: found[side][ids[word]] for word in ids} == {w: np.float32(idf) for w, idf in expected.items()}
        assert found[side][tokenizer(["cat"], 9).ids[0]] == 0  # [CLS]
