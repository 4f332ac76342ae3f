from helpers import wait_for


def test_requests_texts_and_documents_are_counted_and_timed(served):
    line = 'endx_requests_total{method="POST",route="/search",status="%d"}'
    before = [served.metric(line % status) for status in (200, 422)]
    timed = served.metric('endx_request_seconds_count{route="/search"}')
    for content in ({"query": "the cat"}, {"query": "the cat"}, {}):
        served.post("/search", content)
    assert [served.metric(line % status) for status in (200, 422)] == [before[0] + 2, before[1] + 1]
    assert served.metric('endx_request_seconds_count{route="/search"}') == timed + 3
    line = 'endx_texts_total{side="%s"}'
    before = {side: served.metric(line % side) for side in ("question", "answer")}
    served.post("/search", {"query": "the cat"})
    served.post("/search", {"query": "the cat", "mode": "bm25"})  # which encodes nothing
    served.post("/v1/embeddings", {"input": ["the cat", "the mat"], "input_type": "document"})
    assert served.metric(line % "question") == before["question"] + 1
    assert served.metric(line % "answer") == before["answer"] + 2
    assert served.metric("endx_documents") == len(served.service.index)
    assert served.metric("endx_waiting_requests") == 0
    assert served.metric("process_resident_memory_bytes") > 1e7


def test_head_is_counted_with_its_route(served):
    line = 'endx_requests_total{method="HEAD",route="/",status="200"}'
    before = served.metric(line)
    assert served.ask("HEAD", "/")[0] == 200
    wait_for(lambda: served.metric(line) == before + 1, 10)  # the response has no body to wait for


def test_ids_and_methods_that_clients_invent_do_not_become_labels(served):
    served.ask("DELETE", "/documents/unheard-of")
    served.get("/unheard-of")
    metrics = served.get("/metrics")[1]
    assert 'route="/documents/{id:path}",status="404"' in metrics
    assert "unheard-of" not in metrics
    for n in range(3):
        assert served.ask(f"X{n}", "/nowhere")[0] == served.ask("DELETE", "/nowhere")[0] == 404
    lines = [line for line in served.get("/metrics")[1].splitlines() if "endx_requests_total" in line]
    assert 'endx_requests_total{method="other",route="none",status="404"} 3.0' in lines
    assert not any('method="X' in line for line in lines)
