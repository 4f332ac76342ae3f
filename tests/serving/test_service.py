import functools

import numpy as np
import pytest
from helpers import Instead, raising

from endx_jax.data.sets.documents import Document, FoundDocument
from endx_jax.errors import EndxError
from endx_jax.serving.service import EncodeJob, SearchJob, Service, search_result, truncate_width

TEXTS = ["where is the cat 3", "the mat of 7"]


def test_works_of_all_kinds_are_done_in_one_batch(service):
    works = [
        SearchJob(TEXTS[0], 3, "dense"),
        EncodeJob("answer", TEXTS),
        SearchJob(TEXTS[1], 1, "bm25"),
        SearchJob(TEXTS[1], 2, "dense"),
    ]
    works += [EncodeJob("question", TEXTS[:1]), functools.partial(service.delete, "no such document")]
    results = service.run(works)
    for n in (0, 2, 3):
        (expected,) = service.index.search([works[n].question], works[n].k, mode=works[n].mode)
        assert [result["id"] for result in results[n].results] == [answer.document.id for answer in expected]
    np.testing.assert_allclose(results[1].embeddings, service.model.encode_document(TEXTS), atol=1e-6)
    np.testing.assert_allclose(results[4].embeddings, service.model.encode_query(TEXTS[:1]), atol=1e-6)
    assert results[5] is False


@pytest.mark.parametrize(("passages", "expected"), [(0, [100, 500]), (1, [1, 500, 2, 100])])
def test_a_question_is_searched_as_deep_as_alone(service, passages, expected):
    depths, snapshot = [], service.index.snapshot

    def search(questions, k, **options):
        depths.append(k)
        return service.index.search(questions, k, **options)

    split = Instead(snapshot, passages=len(snapshot) + passages)
    noting = Service(service.model, Instead(service.index, search=search, snapshot=split))
    noting.run([SearchJob(TEXTS[0], k, "hybrid") for k in (1, 500, 2, 100)])
    assert depths == expected


def test_an_error_of_one_client_is_returned_in_its_place(service):
    twice = [Document("a", "x")] * 2
    embeddings = np.zeros((2, service.model.width), np.float32)
    works = [
        functools.partial(service.add, twice, embeddings),
        SearchJob("x", 1, "sparse"),
        SearchJob(TEXTS[0], 1, "dense"),
    ]
    wrong, unknown, right = service.run(works)
    assert isinstance(wrong, EndxError)
    assert isinstance(unknown, EndxError)
    assert len(right.results) == 1


def test_a_search_of_an_index_that_can_no_longer_be_read_does_not_end_other_work(service, monkeypatch):
    monkeypatch.setattr(type(service.index), "snapshot", property(raising(EndxError("replaced"))))
    search, encoding = service.run([SearchJob("x", 1, "dense"), EncodeJob("question", ["x"])])
    assert isinstance(search, EndxError)
    assert len(encoding.embeddings) == 1


@pytest.mark.parametrize(("cosine", "expected"), [(True, [[0.6, 0.8]]), (False, [[3.0, 4.0]])])
def test_embeddings_that_are_cut_keep_to_what_they_are_compared_by(cosine, expected):
    np.testing.assert_allclose(truncate_width(np.float32([[3, 4, 12]]), 2, cosine), np.float32(expected))
    whole = np.float32([[3, 4, 12]])
    assert truncate_width(whole, 3, cosine) is whole


def test_texts_metadata_and_known_questions_are_shortened_to_five_characters_each():
    def shown(*document):
        return search_result(FoundDocument(1, 0.5, Document("x", *document)), 5)

    for text, metadata, expected in (
        ("12345", {"a": "678"}, ("12345", {"a": "678"}, False)),
        ("123456", {}, ("12345", {}, True)),
        ("1", {"ab": "cd", "e": 7, "f": 8}, ("1", {"ab": "cd"}, True)),
        ("1", {"long": "67890", "b": 1}, ("1", {}, True)),
    ):
        found = shown(text, metadata)
        assert (found["text"], found["metadata"], found["truncated"]) == expected
    found = shown("t", {}, ("abc", "de", "f"))  # whole or left out
    assert (found["questions"], found["truncated"]) == (["abc", "de"], True)
    assert "questions" not in shown("t")
