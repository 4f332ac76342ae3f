"""Tests of published clients of other projects against a running server."""

import subprocess
import sys

import numpy as np
import pytest

NEEDED = ("openai", "cohere", "litellm", "langchain_cohere", "langchain_openai", "schemathesis")
for name in NEEDED:
    pytest.importorskip(name, reason="the extra [outside] is not installed")
pytest_asyncio = pytest.importorskip("pytest_asyncio", reason="the extra [outside] is not installed")
standard = pytest.importorskip("langchain_tests.integration_tests", reason="the extra [outside] is not installed")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # warnings of the clients

QUERY, DOCUMENTS = "where is the cat 3", ["the mat of 7", "who", "where is the cat 3", "dog"]


@pytest.fixture
def order(served):
    """The documents' positions, best first, by the model itself."""
    model = served.service.model
    return np.argsort(-model.similarity(model.encode_query(QUERY), model.encode_document(DOCUMENTS))[0]).tolist()


def test_openai(served):
    import openai

    model = served.service.model
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="x") as client:
        for given in (DOCUMENTS, [f"the cat {n}" for n in range(2048)], ["cat " * 30_000]):
            found = np.array([entry.embedding for entry in client.embeddings.create(model="m", input=given).data])
            np.testing.assert_allclose(found, model.encode_document(given), atol=1e-5)
        name = client.models.list().data[1].id
        assert client.models.retrieve(name).id == name
        with pytest.raises(openai.UnprocessableEntityError, match="check_embedding_ctx_length=False"):
            client.embeddings.create(model="m", input=[[1, 2], [3]])


def test_cohere(served, order):
    import cohere

    about = {"model": "m", "query": QUERY, "top_n": 3}
    with cohere.ClientV2(api_key="x", base_url=served.url) as client:
        found = client.rerank(documents=DOCUMENTS, **about)
    assert [result.index for result in found.results] == order[:3]
    objects = [{"text": text} for text in DOCUMENTS]
    with cohere.Client(api_key="x", base_url=served.url) as first:
        found = first.rerank(documents=objects, return_documents=True, **about)
    assert [result.document.text for result in found.results] == [DOCUMENTS[n] for n in order[:3]]


@pytest.mark.parametrize("provider", ["cohere", "jina_ai", "hosted_vllm"])
def test_litellm(served, order, provider):
    import litellm

    about = {"query": QUERY, "documents": DOCUMENTS, "top_n": 3, "api_base": served.url, "api_key": "x"}
    found = litellm.rerank(model=f"{provider}/m", **about)
    assert [result["index"] for result in found.results] == order[:3]


@pytest.mark.parametrize("more", [{"model": "openai/m"}, {"model": "nvidia_nim/m", "input_type": "passage"}])
def test_litellm_embeds(served, more):
    import litellm

    found = litellm.embedding(input=DOCUMENTS, api_base=f"{served.url}/v1", api_key="x", **more)
    expected = served.service.model.encode_document(DOCUMENTS)
    np.testing.assert_allclose([entry["embedding"] for entry in found.data], expected, atol=1e-5)


def test_langchain_reranks(served, order):
    from langchain_cohere import CohereRerank
    from langchain_core.documents import Document

    ranker = CohereRerank(model="m", cohere_api_key="x", base_url=served.url, top_n=3)
    found = ranker.compress_documents([Document(page_content=text) for text in DOCUMENTS], QUERY)
    assert [document.page_content for document in found] == [DOCUMENTS[n] for n in order[:3]]


@pytest.mark.asyncio
class TestLangChain(standard.EmbeddingsIntegrationTests):
    """LangChain's standard tests of embeddings."""

    @pytest_asyncio.fixture(autouse=True)
    async def _server(self, served):
        import openai

        # LangChain's own clients are never closed, and only their event loop could close those of coroutines.
        async with openai.DefaultAsyncHttpxClient() as other:
            with openai.DefaultHttpxClient() as client:
                self.server = {"base_url": f"{served.url}/v1", "http_client": client, "http_async_client": other}
                yield

    @property
    def embeddings_class(self):
        from langchain_openai import OpenAIEmbeddings

        return OpenAIEmbeddings

    @property
    def embedding_model_params(self):
        return {**self.server, "api_key": "x", "model": "m:query", "check_embedding_ctx_length": False}


def test_schemathesis_has_no_finding(served, tmp_path):
    options = ["--max-examples=100", "--seed=1"]
    options.append("--exclude-checks=positive_data_acceptance")  # limits of a server are in /info
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{served.url}/openapi.json", *options]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout[-4000:] + found.stderr[-2000:]
