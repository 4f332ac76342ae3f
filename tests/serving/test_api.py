import base64
import urllib.parse

import numpy as np
import pytest

from endx_jax.retrieval.index import Index

TEXTS = ["where is the cat 3", "", "the mat of 7"]


def embeddings(answer):
    status, content = answer
    assert status == 200, content
    assert [entry["index"] for entry in content["data"]] == list(range(len(content["data"])))
    return np.array([entry["embedding"] for entry in content["data"]], np.float32)


def test_embeddings_have_the_shape_that_openai_gives_them(served):
    status, content = served.post("/v1/embeddings", {"input": "the cat", "model": "any name", "user": "someone"})
    assert status == 200
    assert (content["object"], content["model"]) == ("list", "any name")
    (entry,) = content["data"]
    assert (entry["object"], entry["index"], len(entry["embedding"])) == ("embedding", 0, served.service.model.width)
    assert content["usage"] == {"prompt_tokens": 4, "total_tokens": 4}  # [CLS] the cat [SEP]
    assert served.post("/v1/embeddings", {"input": ["x"]})[1]["model"] == served.service.model.name


@pytest.mark.parametrize(("kind", "method"), [("query", "encode_query"), ("document", "encode_document")])
def test_embeddings_are_those_of_the_model(served, kind, method):
    found = embeddings(served.post("/v1/embeddings", {"input": TEXTS, "input_type": kind}))
    np.testing.assert_allclose(found, getattr(served.service.model, method)(TEXTS), atol=1e-6)


def test_base64_holds_little_endian_float32(served):
    plain = embeddings(served.post("/v1/embeddings", {"input": TEXTS}))
    _, content = served.post("/v1/embeddings", {"input": TEXTS, "encoding_format": "base64"})
    packed = [np.frombuffer(base64.b64decode(entry["embedding"]), "<f4") for entry in content["data"]]
    np.testing.assert_array_equal(packed, plain)


def test_embeddings_are_cut_and_of_unit_norm_again(served):
    whole = embeddings(served.post("/v1/embeddings", {"input": TEXTS}))
    found = embeddings(served.post("/v1/embeddings", {"input": TEXTS, "dimensions": 5}))
    np.testing.assert_allclose(found, whole[:, :5] / np.linalg.norm(whole[:, :5], axis=1, keepdims=True), atol=1e-6)


def test_many_texts_are_worked_out_in_pieces(served):
    texts = [f"the cat {n}" for n in range(200)]
    before = served.metric("endx_batch_requests_count")
    found = embeddings(served.post("/v1/embeddings", {"input": texts, "input_type": "document"}))
    assert served.metric("endx_batch_requests_count") - before >= 3
    np.testing.assert_allclose(found, served.service.model.encode_document(texts), atol=1e-6)


@pytest.mark.parametrize("mode", ["dense", "bm25", "hybrid"])
def test_answers_are_those_of_the_search(served, mode):
    status, content = served.post("/search", {"query": "where is the cat 3", "k": 5, "mode": mode})
    assert (status, content["mode"], content["documents"]) == (200, mode, len(served.service.search))
    (expected,) = served.service.search.search(["where is the cat 3"], 5, mode=mode)
    assert [(found["rank"], found["id"], found["text"]) for found in content["results"]] == [
        (answer.rank, answer.document.id, answer.document.text) for answer in expected
    ]
    np.testing.assert_allclose(
        [found["score"] for found in content["results"]], [answer.score for answer in expected], atol=1e-6
    )
    assert content["took_ms"] > 0


def test_documents_are_added_found_replaced_and_deleted_and_that_lasts(served):
    text = "who sat in what? a dog!"
    new = {"id": "api/1 ü", "text": text, "metadata": {"source": "here", "page": 3, "old": False}}
    before = served.get("/info")[1]["documents"]
    assert served.post("/documents", {"documents": [new]}) == (201, {"ids": [new["id"]]})
    _, content = served.post("/search", {"query": text, "k": 1, "mode": "bm25"})
    assert {name: content["results"][0][name] for name in new} == new
    assert content["documents"] == before + 1

    served.post("/documents", {"documents": [{**new, "text": "a mat"}]})
    _, content = served.post("/search", {"query": text, "k": 100, "mode": "dense"})
    assert [found["text"] for found in content["results"] if found["id"] == new["id"]] == ["a mat"]
    assert len(Index(served.service.search.index.folder)) == before + 1

    assert served.ask("DELETE", "/documents/api/1%20%C3%BC")[:2] == (200, {"deleted": new["id"]})
    assert served.get("/info")[1]["documents"] == len(Index(served.service.search.index.folder)) == before


ODD = (
    *(
        "a/b",
        "/a",
        "a/",
        "a//b",
        "a/../b",
        "a/./b",
        "...",
        "%2F",
        "%",
        "a?b#c",
        " x ",
        "a;b=c",
        "a\\b",
        "+",
        "static/x",
    ),
    "static/x",
    "ü" * 256,
)


@pytest.mark.parametrize("identifier", ODD)
def test_documents_with_odd_ids_can_be_deleted(served, identifier):
    assert served.post("/documents", {"documents": [{"text": "odd", "id": identifier}]}) == (201, {"ids": [identifier]})
    address = f"/documents/{urllib.parse.quote(identifier, safe='')}"
    assert served.ask("DELETE", address)[:2] == (200, {"deleted": identifier})
    assert served.ask("DELETE", address)[0] == 404


def test_documents_without_an_id_get_one(served):
    status, content = served.post("/documents", {"documents": [{"text": "the first"}, {"text": "the second"}]})
    assert (status, len(set(content["ids"]))) == (201, 2)
    for identifier in content["ids"]:
        assert served.ask("DELETE", f"/documents/{identifier}")[0] == 200


def test_the_server_tells_what_it_serves(served):
    _, info = served.get("/info")
    assert info["model"] == served.service.model.name
    assert info["modes"] == list(info["scores"]) == ["dense", "bm25", "hybrid"]
    assert info["scores"]["hybrid"] == "dense + 0.0233 x BM25 (weight: the default)"
    assert info["mode"] == served.post("/search", {"query": "the cat"})[1]["mode"] == "hybrid"
    assert info["limits"]["max_k"] == 100
    assert info["asymmetric"] is False


REFUSED = [
    ("/v1/embeddings", b'{"input": ', 400, "not JSON: unexpected end of data, at character 10"),
    ("/v1/embeddings", b'{"input": "\\ud800"}', 400, "not JSON"),
    ("/search", b'{"query": "\xff"}', 400, "not JSON"),
    ("/documents", b'{"documents": [{"text": "x", "metadata": {"a": NaN}}]}', 400, "not JSON"),
    ("/v1/embeddings", {"input": [1, 2]}, 422, r"^input\[0\]: should be a valid string, not 1$"),
    ("/v1/embeddings", {"input": []}, 422, "^input: give at least one text$"),
    ("/v1/embeddings", {"input": "x", "dimensions": 0}, 422, "^dimensions: should be greater than or equal to 1"),
    ("/v1/embeddings", {"input": "x", "dimensions": 5000}, 422, "^dimensions: embeddings have 32$"),
    (
        "/v1/embeddings",
        {"input": "x", "encoding_format": "hex"},
        422,
        "^encoding_format: should be 'float' or 'base64'",
    ),
    ("/v1/embeddings", {"input": ["x"] * 1025}, 422, "^input: 1025 texts exceed the limit of 1024"),
    ("/search", [], 422, "^the body: should be an object$"),
    ("/search", {}, 422, "^query: is missing$"),
    ("/search", {"query": 5}, 422, "^query: should be a valid string, not 5$"),
    ("/search", {"query": "x", "k": "3"}, 422, '^k: should be a valid integer, not "3"$'),
    ("/search", {"query": "x", "k": 101}, 422, "^k: at most 100, not 101$"),
    ("/search", {"query": "x", "K": 3}, 422, "^K: there is no such field$"),
    ("/search", {"query": "x", "mode": "sparse"}, 422, "^mode: should be 'dense', 'bm25' or 'hybrid', not \"sparse\"$"),
    ("/search", {"query": "x" * 100_000}, 422, "^query: 100000 characters exceed the limit of 20000"),
    ("/documents", {"documents": []}, 422, "^documents: give at least one$"),
    ("/documents", {"documents": [{"text": ""}]}, 422, r"^documents\[0\].text: is empty$"),
    ("/documents", {"documents": [{"text": "x", "metadata": {"a": [1]}}]}, 422, r"metadata.a: must be text, a number"),
    ("/documents", {"documents": [{"text": "x", "id": "a"}] * 2}, 422, "^documents: the id 'a' is given twice$"),
    ("/documents", {"documents": [{"text": "x", "id": ""}]}, 422, r"^documents\[0\].id: the id is empty$"),
    ("/documents", {"documents": [{"text": "x", "id": ".."}]}, 422, r"^documents\[0\].id: the id is '\.\.'"),
    ("/documents", {"documents": [{"text": "x", "id": "a\nb"}]}, 422, r"the id holds the control character '\\n'"),
    ("/documents", {"documents": [{"text": "x", "id": "x" * 600}]}, 422, "the id is longer than 512 bytes"),
    ("/search", {"query": " "}, 422, "^query: is empty$"),
    ("/documents", {"documents": [{"text": "x"}, {"text": "x" * 20_001}]}, 422, r"^documents\[1\]: 20001 characters"),
]


@pytest.mark.parametrize(("path", "content", "status", "message"), REFUSED)
def test_errors_have_one_format(served, path, content, status, message):
    found, answer = served.post(path, content)
    assert (found, answer["error"]["type"]) == (status, "invalid_request_error")
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(answer["error"]["message"])


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("DELETE", "/documents/no/such", 404, "not_found_error"),
        ("GET", "/nowhere", 404, "not_found_error"),
        ("GET", "/search", 405, "invalid_request_error"),
        ("GET", "/static/../api.py", 404, "not_found_error"),
        ("GET", "/static/%2e%2e/api.py", 404, "not_found_error"),
        ("GET", "/static/..%2fapi.py", 404, "not_found_error"),
    ],
)
def test_missing_routes_and_documents_have_the_same_error_format(served, method, path, status, kind):
    found, answer, _ = served.ask(method, path)
    assert (found, answer["error"]["type"]) == (status, kind)
