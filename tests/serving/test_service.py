import numpy as np
import pytest

from endx_jax.data.documents import Document
from endx_jax.errors import EndxError
from endx_jax.serving.service import cut
from endx_jax.serving.works import Add, Ask, Delete, Encode

TEXTS = ["where is the cat 3", "the mat of 7"]


def test_works_of_all_kinds_are_done_in_one_batch(service):
    works = [
        Ask(TEXTS[0], 3, "dense"),
        Encode("answer", TEXTS),
        Ask(TEXTS[1], 1, "bm25"),
        Ask(TEXTS[1], 2, "dense"),
        Encode("question", TEXTS[:1]),
        Delete("no such document"),
    ]
    results = service.run(works)
    for n in (0, 2, 3):
        (expected,) = service.search.search([works[n].question], works[n].k, mode=works[n].mode)
        assert [answer.document.id for answer in results[n]] == [answer.document.id for answer in expected]
    np.testing.assert_allclose(results[1].embeddings, service.model.encode_document(TEXTS), atol=1e-6)
    np.testing.assert_allclose(results[4].embeddings, service.model.encode_query(TEXTS[:1]), atol=1e-6)
    assert results[5] is False


def test_what_a_client_is_to_blame_for_is_an_error_in_its_place(service):
    twice = [Document("a", "x")] * 2
    embeddings = np.zeros((2, service.model.width), np.float32)
    wrong, unknown, right = service.run([Add(twice, embeddings), Ask("x", 1, "sparse"), Ask(TEXTS[0], 1, "dense")])
    assert isinstance(wrong, EndxError)
    assert isinstance(unknown, EndxError)
    assert len(right) == 1


@pytest.mark.parametrize(("cosine", "expected"), [(True, [[0.6, 0.8]]), (False, [[3.0, 4.0]])])
def test_embeddings_that_are_cut_keep_to_what_they_are_compared_by(cosine, expected):
    np.testing.assert_allclose(cut(np.float32([[3, 4, 12]]), 2, cosine), np.float32(expected))
    whole = np.float32([[3, 4, 12]])
    assert cut(whole, 3, cosine) is whole
