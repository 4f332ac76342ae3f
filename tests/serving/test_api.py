import base64
import dataclasses
import re
import shutil
import threading
import time
import urllib.parse

import jax
import numpy as np
import pytest
from helpers import wait_for
from http_server import Running, unprepared
from tiny_bert import write_usage

from endx_jax import load
from endx_jax.data.formats import document_files
from endx_jax.data.sets.documents import Document
from endx_jax.index.index import Index, write_index
from endx_jax.index.index_model import open_index

TEXTS = ["where is the cat 3", "", "the mat of 7"]
DOCUMENTS = [*(f"the mat of {n}" for n in range(100)), "where is the cat 3"]
ODD = (
    *("a/b", "/a", "a/", "a//b", "a/../b", "a/./b", "...", "static/x", "ü" * 256),
    *("%2F", "%", "a?b#c", " x ", "a;b=c", "a\\b", "+"),
)


def embeddings(answer):
    status, content = answer
    assert status == 200, content
    assert [entry["index"] for entry in content["data"]] == list(range(len(content["data"])))
    return np.array([entry["embedding"] for entry in content["data"]], np.float32)


def test_embeddings_have_the_shape_that_openai_gives_them_and_trace_no_model(served, monkeypatch):
    status, content = served.post("/v1/embeddings", {"input": "the cat", "model": "any name", "user": "someone"})
    assert status == 200
    assert (content["object"], content["model"]) == ("list", "any name")
    (entry,) = content["data"]
    assert (entry["object"], entry["index"], len(entry["embedding"])) == ("embedding", 0, served.service.model.width)
    assert content["usage"] == {"prompt_tokens": 4, "total_tokens": 4}  # [CLS] the cat [SEP]
    assert served.post("/v1/embeddings", {"input": ["x"]})[1]["model"] == served.service.model.name
    embeddings(served.post("/v1/embeddings", {"input": "the cat"}))
    monkeypatch.setattr(jax, "eval_shape", None)
    embeddings(served.post("/v1/embeddings", {"input": "the mat"}))


def test_base64_holds_little_endian_float32_and_what_is_cut_is_of_unit_norm_again(served):
    plain = embeddings(served.post("/v1/embeddings", {"input": TEXTS}))
    _, content = served.post("/v1/embeddings", {"input": TEXTS, "encoding_format": "base64"})
    packed = [np.frombuffer(base64.b64decode(entry["embedding"]), "<f4") for entry in content["data"]]
    np.testing.assert_array_equal(packed, plain)
    found = embeddings(served.post("/v1/embeddings", {"input": TEXTS, "dimensions": 5}))
    np.testing.assert_allclose(found, plain[:, :5] / np.linalg.norm(plain[:, :5], axis=1, keepdims=True), atol=1e-6)


def test_many_texts_are_worked_out_in_pieces(served):
    texts = [f"the cat {n}" for n in range(200)]
    before = served.metric("endx_batch_requests_count")
    found = embeddings(served.post("/v1/embeddings", {"input": texts, "input_type": "document"}))
    assert served.metric("endx_batch_requests_count") - before >= 3
    np.testing.assert_allclose(found, served.service.model.encode_document(texts), atol=1e-6)


@pytest.mark.parametrize("mode", ["dense", "bm25", "hybrid"])
def test_answers_are_those_of_the_search(served, mode):
    status, content = served.post("/search", {"query": "where is the cat 3", "k": 5, "mode": mode})
    assert (status, content["mode"], content["documents"]) == (200, mode, len(served.service.index))
    (expected,) = served.service.index.search(["where is the cat 3"], 5, mode=mode)
    found = [(one["rank"], one["id"], one["text"]) for one in content["results"]]
    assert found == [(answer.rank, answer.document.id, answer.document.text) for answer in expected]
    scores = [[found["score"] for found in content["results"]], [answer.score for answer in expected]]
    np.testing.assert_allclose(*scores, atol=1e-6)
    assert content["took_ms"] > 0


def test_documents_are_added_found_replaced_and_deleted_and_that_lasts(served):
    text = "who sat in what? a dog!"
    new = {"id": "api/1 ü", "text": text, "metadata": {"source": "here", "page": 3, "old": False}}
    new["questions"] = ["who hides under beds", "what purrs"]
    before = served.get("/info")[1]["documents"]
    assert served.post("/documents", {"documents": [new]}) == (201, {"ids": [new["id"]]})
    for query in (text, new["questions"][1]):
        _, content = served.post("/search", {"query": query, "k": 1, "mode": "bm25"})
        assert {name: content["results"][0][name] for name in new} == new
        assert content["documents"] == before + 1
    served.post("/documents", {"documents": [{**new, "text": "a mat"}]})
    _, content = served.post("/search", {"query": text, "k": 100, "mode": "dense"})
    assert [found["text"] for found in content["results"] if found["id"] == new["id"]] == ["a mat"]
    assert len(Index(served.service.index.path)) == before + 1
    assert served.ask("DELETE", "/documents/api/1%20%C3%BC")[:2] == (200, {"deleted": new["id"]})
    assert served.get("/info")[1]["documents"] == len(Index(served.service.index.path)) == before


def test_documents_with_odd_ids_can_be_read_and_deleted(served):
    documents = [{"text": "odd", "id": name, "metadata": {"page": 3}} for name in ODD]
    assert served.post("/documents", {"documents": documents}) == (201, {"ids": [*ODD]})
    for document in documents:
        address = f"/documents/{urllib.parse.quote(document['id'], safe='')}"
        assert served.get(address) == (200, document)
        assert served.ask("DELETE", address)[:2] == (200, {"deleted": document["id"]})
        for method in ("GET", "DELETE"):
            status, content, _ = served.ask(method, address)
            assert (status, content["error"]["code"]) == (404, "unknown_id")


def test_a_model_that_can_only_search_adds_no_documents(service, serve):
    student = dataclasses.replace(service.model, params=jax.tree.map(lambda x: x + 1, service.model.params))
    status, content = serve(service=unprepared(student, service.index)).post(
        "/documents", {"documents": [{"text": "x"}]}
    )
    assert (status, content["error"]["code"]) == (409, "other_model")
    assert "use the former" in content["error"]["message"]


def test_a_long_text_is_split_into_passages_which_replace_each_other(served):
    new = {"id": "long", "text": "The cat sat. " * 150, "metadata": {"title": "Cats", "lang": "en"}, "split": True}
    status, content = served.post("/documents", {"documents": [new]})
    assert (status, content["ids"], "passages reach the limit of" in content["note"]) == (201, ["long"], True)
    _, whole = served.get("/documents/long")
    assert (whole["metadata"], whole["text"].replace("\n\n", " ")) == (new["metadata"], new["text"].strip())
    other = {"id": "long#2", "text": "A reply about cats.", "metadata": {"passage_of": "long"}}
    served.post("/documents", {"documents": [other]})
    _, found = served.post("/search", {"query": "The cat sat.", "k": 5, "mode": "dense", "where": {"lang": "en"}})
    (passage,) = found["results"]  # a document once
    assert (passage["id"], passage["metadata"], passage["truncated"]) == ("long", new["metadata"], False)
    assert passage["passage"] in (1, 2, 3)
    assert passage["text"].startswith("Cats The cat sat. The cat")
    for text in (new["text"][:1200], "A cat.", new["text"]):
        before = served.get("/info")[1]["documents"]
        assert served.post("/documents", {"documents": [{**new, "text": text}]})[1]["ids"] == ["long"]
        assert served.get("/info")[1]["documents"] == before
    assert served.post("/documents", {"documents": [new, {"id": "long", "text": "A."}]})[0] == 409
    assert served.post("/documents", {"documents": [{"id": "long", "text": "A."}]}) == (201, {"ids": ["long"]})
    assert served.get("/documents/long")[1]["text"] == "A."
    assert served.get("/documents/long%232")[1] == other
    for name in ("long", "long%232"):
        assert served.ask("DELETE", f"/documents/{name}")[0] == 200


def test_others_are_answered_while_a_text_is_split(serve, gated, monkeypatch):
    monkeypatch.setattr(document_files, "split_passages", lambda text: gated.gate.wait(20) and [text])
    running = serve(service=gated)
    new = {"documents": [{"text": "a " * 500, "split": True}]}
    adding = threading.Thread(target=running.post, args=("/documents", new))
    adding.start()
    wait_for(lambda: running.metric("endx_waiting_requests") == 1)
    assert running.get("/healthz")[0] == 200
    adding.join(0.1)
    assert adding.is_alive()
    gated.gate.set()
    adding.join(20)


def test_documents_without_an_id_get_one(served):
    status, content = served.post("/documents", {"documents": [{"text": "the first"}, {"text": "the second"}]})
    assert (status, len(set(content["ids"]))) == (201, 2)
    for identifier in content["ids"]:
        assert served.ask("DELETE", f"/documents/{identifier}")[0] == 200


def test_the_server_tells_what_it_serves(served):
    _, info = served.get("/info")
    assert info["model"] == served.service.model.name
    assert info["modes"] == list(info["scores"]) == ["dense", "bm25", "hybrid"]
    assert info["scores"]["hybrid"] == "dense + 0.08 x BM25 (weight: the default)"
    assert info["mode"] == served.post("/search", {"query": "the cat"})[1]["mode"] == "hybrid"
    assert info["limits"]["max_k"] == 100
    assert info["asymmetric"] is False


WHOLE = "metadata.a whole number"
TEXTS_2049 = "2049 texts limit"
REFUSED = [
    ("/v1/embeddings", b'{"input": ', 400, "JSON character 10"),
    ("/v1/embeddings", b'{"input": "\\ud800"}', 400, "JSON"),
    ("/search", b'{"query": "\xff"}', 400, "JSON"),
    ("/documents", b'{"documents": [{"text": "x", "metadata": {"a": NaN}}]}', 400, "JSON"),
    ("/v1/embeddings", {"input": ["x", 2]}, 422, "input[1] string 2"),
    ("/v1/embeddings", {"input": [1, 2]}, 422, "input token check_embedding_ctx_length=False"),
    ("/v1/embeddings", {"input": [[1, 2], [3]]}, 422, "input token"),
    ("/v1/embeddings", {"input": []}, 422, "input at least one"),
    ("/v1/embeddings", {"input": "x", "dimensions": 0}, 422, "dimensions 1"),
    ("/v1/embeddings", {"input": "x", "dimensions": 5000}, 422, "dimensions 32"),
    ("/v1/embeddings", {"input": "x", "encoding_format": "x"}, 422, "encoding_format 'float' or 'base64'"),
    ("/v1/embeddings", {"input": ["x"] * 2049}, 422, f"input {TEXTS_2049} 2048"),
    ("/v1/embeddings", {"input": ["x", "é" * 500_001]}, 422, "input[1] 1000002 1000000"),
    ("/search", [], 422, "the body object"),
    ("/search", {}, 422, "query missing"),
    ("/search", {"query": 5}, 422, "query string 5"),
    ("/search", {"query": "x", "k": "3"}, 422, 'k integer "3"'),
    ("/search", {"query": "x", "k": 101}, 422, "k 100 101"),
    ("/search", {"query": "x", "K": 3}, 422, "K /openapi.json"),
    ("/search", {"query": "x", "K" * 9000: 3}, 422, f"{'K' * 50} ... /openapi.json"),
    ("/documents", {"documents": [{"text": "x", "metadata": {"K" * 9000: []}}]}, 422, "KK... text number"),
    ("/search", {"query": "x", "mode": "sparse"}, 422, "mode 'dense', 'bm25' or 'hybrid' \"sparse\""),
    ("/search", {"query": "x" * 1_000_001}, 422, "query 1000001 1000000"),
    ("/search", {"query": "x", "k": 2.5}, 422, "k integer"),
    ("/documents", {"documents": []}, 422, "documents at least one"),
    ("/documents", {"documents": [{"text": "x"}] * 2049}, 422, f"documents {TEXTS_2049}"),
    ("/documents", {"documents": [{"text": " "}]}, 422, "documents[0].text empty"),
    ("/documents", {"documents": [{"text": "x", "metadata": {"a": [1]}}]}, 422, "metadata.a text number"),
    ("/documents", {"documents": [{"text": "x", "metadata": {"a": 2**64 + 1}}]}, 422, WHOLE),
    ("/documents", {"documents": [{"text": "x", "metadata": {"a": -(2**63) - 1}}]}, 422, WHOLE),
    ("/search", {"query": "x", "where": {"a": 2**64 + 1}}, 422, "where 18446744073709551617 use a text"),
    ("/documents", {"documents": [{"text": "x", "id": "a"}] * 2}, 409, "documents 'a' twice"),
    ("/documents", {"documents": [{"text": "x", "questions": [" "]}]}, 422, "documents[0].questions[0] empty"),
    ("/documents", {"documents": [{"text": "x", "id": ""}]}, 422, "documents[0].id empty"),
    ("/search", {"query": " "}, 422, "query empty"),
    ("/documents", {"documents": [{"text": "x"}, {"text": "x" * 1_000_001}]}, 422, "documents[1] 1000001"),
    ("/documents", {"documents": [{"text": "A cat. " * 500_000, "split": True}]}, 422, "documents: texts 2048 several"),
    ("/documents", {"documents": [{"text": "x" * 1_000_001, "split": True}]}, 422, "documents 1000001"),
    ("/v1/rerank", {"query": "x", "documents": []}, 422, "documents at least one"),
    ("/v1/rerank", {"query": "x", "documents": ["x"] * 2049}, 422, f"documents {TEXTS_2049}"),
    ("/v1/rerank", {"query": "x", "documents": "x"}, 422, "documents list"),
    ("/v1/rerank", {"query": "x" * 1_000_001, "documents": ["x"]}, 422, "query 1000001"),
    ("/v1/rerank", {"query": "x", "documents": ["x"], "top_n": 0}, 422, "top_n greater"),
]


@pytest.mark.parametrize(("path", "content", "status", "words"), REFUSED)
def test_errors_have_one_format_and_name_the_field_and_what_it_may_be(served, path, content, status, words):
    found, answer = served.post(path, content)
    assert (found, answer["error"]["type"]) == (status, "invalid_request_error")
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    assert len(str(answer)) < 400
    assert [word for word in words.split() if word not in answer["error"]["message"]] == []


MISSING = [
    ("DELETE", "/documents/" + "x" * 9000, 404, "not_found_error"),
    ("GET", "/nowhere" * 1000, 404, "not_found_error"),
    ("GET", "/search", 405, "invalid_request_error"),
    ("GET", "/search/", 404, "not_found_error"),  # and no redirect to an address that a proxy may not have
    *(("GET", f"/static/{up}api.py", 404, "not_found_error") for up in ("../", "%2e%2e/", "..%2f")),
]
# And all methods that the path takes.
WRONG = [
    ("PUT", "/documents/a/b", "GET, DELETE, HEAD"),
    ("POST", "/documents/a", "GET, DELETE, HEAD"),  # although its body is no JSON
    ("OPTIONS", "/documents", "POST"),
    *(("POST", path, "GET, HEAD") for path in ("/", "/static/page.js")),
    ("DELETE", "/openapi.json", "GET, HEAD"),
]


def test_missing_routes_and_wrong_methods_have_the_same_error_format_and_all_right_methods(served):
    for method, path, status, kind in MISSING:
        found, answer, _ = served.ask(method, path)
        assert (found, answer["error"]["type"]) == (status, kind), path
        assert len(str(answer)) < 400
    for method, path, allowed in WRONG:
        status, _, headers = served.ask(method, path)
        assert (status, set(headers["Allow"].split(", "))) == (405, set(allowed.split(", "))), path


def test_a_long_text_is_cut_and_counted_as_by_encode(served):
    model, length = served.service.model, served.service.model.encoder.processors["answer"].length
    exact, long = "cat " * (length - 2), "cat " * 30_000  # [CLS] and [SEP] are the other two
    status, content = served.post("/v1/embeddings", {"input": [exact, long, "cat"]})
    np.testing.assert_allclose(embeddings((status, content)), model.encode_document([exact, long, "cat"]), atol=1e-5)
    assert content["usage"]["total_tokens"] == 2 * length + 3
    assert content["note"].startswith(f"1 of 3 texts reach the limit of {length} tokens")
    assert "note" not in served.post("/v1/embeddings", {"input": [exact, "cat"]})[1]
    for query, tokens, noted in (("cat", 3, ["1 of 2"]), (long, length, ["1 of 1", "1 of 2"])):
        _, content = served.post("/v1/rerank", {"query": query, "documents": [long, "cat"]})
        assert content["usage"]["total_tokens"] == tokens + length + 3
        assert re.findall(r"\d of \d", content["note"]) == noted
    status, content = served.post("/search", {"query": long, "k": 1.0})
    assert (status, content["note"][:6]) == (200, "1 of 1")
    assert "note" not in served.post("/search", {"query": long, "mode": "bm25"})[1]  # which reads all of it
    assert served.post("/documents", {"documents": [{"id": "long", "text": long}]})[1]["note"][:6] == "1 of 1"
    assert served.get("/documents/long")[1]["text"] == long.strip()
    assert served.ask("DELETE", "/documents/long")[0] == 200


@pytest.fixture(scope="module")
def prompted(tiny_bert, tmp_path_factory):
    """A server of a model with prompts, of 8 of its 32 dimensions, and an index of all of them of three documents."""
    folder = shutil.copytree(tiny_bert, tmp_path_factory.mktemp("prompted") / "model")
    write_usage(folder, prompts={"query": "who: ", "document": "what: "})
    model, documents = load(folder), [Document(str(n), text) for n, text in enumerate(TEXTS)]
    write_index(folder / "i", model.encode_document(TEXTS), documents, metric="cosine", model=model.description)
    narrow = dataclasses.replace(model, truncate_dim=8)
    running = Running(unprepared(narrow, open_index(folder / "i", model)))
    yield running
    running.stop()


def test_an_index_of_all_dimensions_is_searched_with_a_model_that_returns_few(prompted):
    (expected,) = prompted.service.index.search(TEXTS[:1], 3, mode="dense")
    found = prompted.post("/search", {"query": TEXTS[0], "mode": "dense"})[1]["results"]
    assert [one["id"] for one in found] == [one.document.id for one in expected]
    np.testing.assert_allclose([one["score"] for one in found], [one.score for one in expected], atol=1e-6)


@pytest.mark.parametrize("side", ["query", "document"])
def test_the_side_is_chosen_by_the_models_name_or_the_input_type(prompted, served, side):
    ways = [("model", f"any:{side}"), ("input_type", side), ("input_type", f"search_{side}")]
    ways += [("input_type", "passage")] * (side == "document")  # in NVIDIA's API
    for running in (prompted, served):  # a symmetric model too accepts both
        expected = getattr(running.service.model, f"encode_{side}")(TEXTS, normalize_embeddings=True)
        for field, value in ways:
            found = embeddings(running.post("/v1/embeddings", {"input": TEXTS, field: value}))
            np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        *((given, '"query" or "document"') for given in ({}, {"model": "query"}, {"model": "m:latest"})),
        ({"model": "m:query", "input_type": "search_document"}, "set it to"),
    ],
)
def test_a_side_that_is_missing_or_contradicted_is_refused(prompted, given, remedy):
    status, content = prompted.post("/v1/embeddings", {"input": "the cat", **given})
    assert (status, content["error"]["param"]) == (422, "input_type")
    assert remedy in content["error"]["message"]


def test_the_names_of_the_model_are_listed(prompted):
    status, content = prompted.get("/v1/models")
    name = prompted.service.model.name
    assert (status, content["object"]) == (200, "list")
    assert [entry["id"] for entry in content["data"]] == [name, f"{name}:query", f"{name}:document"]
    assert {(entry["object"], entry["owned_by"]) for entry in content["data"]} == {("model", "endx_jax")}
    assert all(isinstance(entry["created"], int) for entry in content["data"])
    assert prompted.get(f"/v1/models/{name}:query") == (200, content["data"][1])
    assert prompted.get("/v1/models/other")[0] == 404


@pytest.mark.parametrize("more", [{}, {"top_n": 3}, {"top_n": 1000, "return_documents": True, "max_chunks_per_doc": 9}])
def test_documents_are_ranked_by_the_model_that_embeds(prompted, more):
    query, model = "where is the cat 3", prompted.service.model
    status, content = prompted.post("/v1/rerank", {"model": "m", "query": query, "documents": DOCUMENTS, **more})
    assert (status, content["model"]) == (200, "m")
    scores = model.similarity(model.encode_query(query), model.encode_document(DOCUMENTS))[0]
    results = content["results"]
    assert len(results) == min(more.get("top_n", 101), 101)
    found = [result["relevance_score"] for result in results]
    np.testing.assert_allclose(found, sorted(scores, reverse=True)[: len(results)], atol=1e-5)
    np.testing.assert_allclose(found, scores[[result["index"] for result in results]], atol=1e-5)
    for result in results:
        expected = {"text": DOCUMENTS[result["index"]]} if "return_documents" in more else None
        assert result.get("document") == expected


@pytest.mark.parametrize("path", ["/v2/rerank", "/rerank"])
def test_documents_may_be_objects_null_is_absent_and_other_clients_have_their_paths(prompted, path):
    given = {"query": "where is the cat 3", "documents": DOCUMENTS[:3]}
    expected = prompted.post("/v1/rerank", given)
    nulls = {"top_n": None, "return_documents": None, "model": None}
    assert prompted.post(path, {**given, "documents": [{"text": text} for text in DOCUMENTS[:3]], **nulls}) == expected
    assert prompted.post("/v1/embeddings", {"input": "x", "model": "m:query", "encoding_format": None})[0] == 200


def test_documents_are_ranked_by_the_cross_encoder_if_there_is_one(service, serve):
    asked, scored = [], []

    def pairs(questions, documents):
        asked.append((questions, documents))

        def score(rows):
            scored.append(rows.tolist())
            return np.float32([len(documents[document]) + len(questions[0]) for _, document in rows])

        return score

    other = unprepared(service.model, service.index, pairs=pairs)
    documents = [*("x" * n for n in (3, 1, 2)), "cat " * 1024]
    _, content = serve(service=other).post("/v1/rerank", {"query": "why", "documents": documents})
    results = [(result["index"], result["relevance_score"]) for result in content["results"]]
    assert results == [(3, 4099.0), (0, 6.0), (2, 5.0), (1, 4.0)]
    assert asked == [(["why"], documents)]  # each text is tokenized once
    assert scored == [[[0, 0], [0, 1], [0, 2]], [[0, 3]]]
    sides = (("question", ["why"] * 4), ("answer", documents))  # the question is read with each document
    counted = sum(service.model.encoder.processors[side](texts).lengths.sum() for side, texts in sides)
    assert content["usage"]["total_tokens"] == counted
    assert content["note"].startswith("1 of 4 documents are longer than what is read: only their beginnings are scored")


ITEMS = ",".join("1" * 1_000_000)


@pytest.mark.parametrize(
    ("path", "content", "param"),
    [
        ("/v1/embeddings", f'{{"input":[{ITEMS}]}}', "input"),  # token ids, as one error
        ("/v1/rerank", f'{{"query":"a","documents":[{ITEMS}]}}', "documents[0]"),
        ("/documents", f'{{"documents":[{ITEMS}]}}', "documents[0]"),
        ("/documents", f'{{"documents":[{{"text":"a","questions":[{ITEMS}]}}]}}', "documents[0].questions[0]"),
    ],
    ids=range(4),
)
def test_many_wrong_items_have_one_error(served, path, content, param):
    began = time.process_time()
    status, found = served.post(path, content.encode())
    assert (status, found["error"]["param"]) == (422, param)
    assert time.process_time() - began < 1  # reporting the errors of all of them would take longer


def test_a_filter_selects_documents_by_their_metadata(served, monkeypatch):
    documents = [{"id": f"filter {n}", "text": "the cat of 7", "metadata": {"year": 2018 + n}} for n in range(3)]
    assert served.post("/documents", {"documents": documents})[0] == 201
    try:
        for mode in ("dense", "bm25", "hybrid"):
            asked = {"query": "the cat", "mode": mode, "k": 50}
            found = served.post("/search", {**asked, "where": {"year": {"gte": 2019}}})[1]["results"]
            assert {result["id"] for result in found} == {"filter 1", "filter 2"}
            assert len(served.post("/search", asked)[1]["results"]) > 3
        threads, snapshot = [], Index.snapshot.fget
        with monkeypatch.context() as patch:
            noted = lambda index: threads.append(threading.current_thread()) or snapshot(index)  # noqa: E731
            patch.setattr(Index, "snapshot", property(noted))
            found = served.post("/search", {**asked, "where": {"year": 1}})[1]
        assert served.thread not in threads  # the event loop reads no metadata
        assert (found["results"], found["note"]) == ([], "no document has a 'year' that matches 1")
        status, content = served.post("/search", {**asked, "where": {"year": {"from": 2019}}})
        assert (status, content["error"]["param"]) == (422, "where")
        assert content["error"]["message"].startswith("where: the filter of 'year' has bounds")
        status, content = served.post("/search", {**asked, "where": {f"f{n}": 1 for n in range(1001)}})
        assert (status, content["error"]["param"]) == (400, "where")
        assert "a filter has at most 100 conditions" in content["error"]["message"]
    finally:
        for n in range(3):
            served.ask("DELETE", f"/documents/filter%20{n}")
