"""Routes of the HTTP API."""

import asyncio
import base64
import collections
import dataclasses
import functools
import json
import re
import time
import uuid
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import orjson
from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.routing import APIRoute

import endx_jax
from endx_jax.data.batches.ragged import concatenate
from endx_jax.data.sets.documents import Document, passages_of
from endx_jax.errors import EndxError
from endx_jax.index.filters import FilterLimit, condition, why_nothing
from endx_jax.index.index_model import check_model
from endx_jax.inference.low_latency import Encoded
from endx_jax.models.dual_encoder import SIDE_OF_TASK
from endx_jax.serving.batching import MOST_CHARACTERS, Batcher, cost, in_pieces, while_connected
from endx_jax.serving.errors import Refusal, clipped
from endx_jax.serving.schemas import (
    DocumentsRequest,
    EmbeddingsRequest,
    ErrorResponse,
    NewDocument,
    RerankRequest,
    SearchRequest,
)
from endx_jax.serving.service import EncodeJob, SearchJob, Service, truncate_width
from endx_jax.serving.settings import Limits


class JSONRequest(Request):
    """Request whose JSON is parsed by orjson, which raises the errors of the standard library."""

    async def body(self) -> bytes:
        """Returns the body.

        Raises:
          HTTPException: with 408 if the body did not arrive in time.
        """
        seconds = self.app.state.max_seconds
        try:
            async with asyncio.timeout(seconds):
                return await super().body()
        except TimeoutError:
            raise HTTPException(408, f"the body did not arrive within {seconds:g} seconds") from None

    async def json(self) -> Any:
        """Returns the parsed body."""
        body = await self.body()
        parsed = orjson.loads(body)  # which rounds whole numbers of over 64 bits
        return json.loads(body) if re.search(rb"\d{19}", body) else parsed


class JSONRoute(APIRoute):
    """Route whose requests are `JSONRequest`s."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Returns the handler that FastAPI calls."""
        handle = super().get_route_handler()

        async def handle_json(request: Request) -> Response:
            request = JSONRequest(request.scope, request.receive)
            # A browser lets pages of other sites send forms and plain text without asking; JSON needs a preflight
            # request, which fails.
            kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
            if request.method == "POST" and kind != "application/json":
                message = "send JSON with the header Content-Type: application/json"
                raise Refusal(415, message, code="content_type")
            return await handle(request)

        return handle_json


REFUSED: dict[int | str, dict[str, Any]] = {"4XX": {"model": ErrorResponse}, "503": {"model": ErrorResponse}}
router = APIRouter(responses=REFUSED, route_class=JSONRoute)


@dataclasses.dataclass(frozen=True)
class Server:
    """What the routes work with, in `app.state.server`.

    Attributes:
      service: service with the model and the index.
      batcher: batcher that runs the service's jobs.
      limits: bounds of requests.
    """

    service: Service
    batcher: Batcher
    limits: Limits

    def note(self, encoded: Mapping[str, Encoded], *, split: bool = False) -> dict[str, str]:
        """Returns the field `note` if texts of a side, or passages of `split` ones, were cut."""
        processors = self.service.model.encoder.processors
        counts = {side: (int(of.truncated.sum()), len(of.tokens)) for side, of in encoded.items()}
        lines = [processors[side].describe_cut(*count, side, split=split) for side, count in counts.items() if count[0]]
        return {"note": "; ".join(lines)} if lines else {}

    async def encode(self, request: Request, side: str, texts: Sequence[str]) -> Encoded:
        """Encodes any number of texts of a side."""
        parts = await in_pieces(self.batcher, request.receive, functools.partial(EncodeJob, side), texts)
        return Encoded(*map(concatenate, zip(*parts, strict=True)))


def server_of(request: Request) -> Server:
    """Returns the server that got a request."""
    return request.app.state.server


@router.post("/v1/embeddings")
async def embed(request: Request, body: EmbeddingsRequest) -> Response:
    """Embeds texts."""
    server = server_of(request)
    model = server.service.model
    check_texts("input", body.input, server.limits)
    if model.by_token:
        raise Refusal(422, "model: it has no embedding of a whole text, only one for each token", param="model")
    side = SIDE_OF_TASK[_task(body, model.asymmetric)]
    if body.dimensions is not None and body.dimensions > model.width:
        raise Refusal(422, f"dimensions: embeddings have {model.width}", param="dimensions")
    with server.batcher.request():
        encoded = await server.encode(request, side, body.input)
    rows: Any = truncate_width(encoded.embeddings, body.dimensions or model.width, model.cosine)
    if body.encoding_format == "base64":
        rows = [base64.b64encode(row.astype("<f4").tobytes()).decode() for row in rows]
    data = [{"object": "embedding", "index": n, "embedding": row} for n, row in enumerate(rows)]
    read = {"model": body.model or model.name, "usage": usage(encoded), **server.note({side: encoded})}
    return _json({"object": "list", "data": data, **read})


def _models(request: Request) -> dict[str, dict]:
    """Returns the model by its names: its own, and those for each side."""
    own = server_of(request).service.model.name
    names = [own, *(f"{own}:{task}" for task in SIDE_OF_TASK)]
    return {name: {"id": name, "object": "model", "created": 0, "owned_by": "endx_jax"} for name in names}


@router.get("/v1/models")
async def list_models(request: Request) -> Response:
    """Lists the model, and its names for each side, in the format of OpenAI's API."""
    return _json({"object": "list", "data": [*_models(request).values()]})


@router.get("/v1/models/{name:path}")
async def retrieve_model(request: Request, name: str) -> Response:
    """Describes a model of the list."""
    description = _models(request).get(name)
    if description is None:
        raise Refusal(404, f"there is no model {clipped(repr(name))}", param="name", code="model_not_found")
    return _json(description)


# The second path is that of Cohere's ClientV2, the third that of vLLM.
@router.post("/v1/rerank")
@router.post("/v2/rerank", include_in_schema=False)
@router.post("/rerank", include_in_schema=False)
async def rerank(request: Request, body: RerankRequest) -> Response:
    """Ranks documents by a cross-encoder, or by the embeddings if the server has none."""
    server = server_of(request)
    model = server.service.model
    check_texts("query", [body.query], server.limits)
    check_texts("documents", body.documents, server.limits)
    read: dict[str, Any]
    with server.batcher.request():
        if server.service.pairs is None:
            asked = await server.encode(request, "question", [body.query])
            answers = await server.encode(request, "answer", body.documents)
            sides = [truncate_width(one.embeddings, model.width, model.cosine) for one in (asked, answers)]
            scores = sides[1] @ sides[0][0]
            read = {"usage": usage(asked, answers), **server.note({"question": asked, "answer": answers})}
        else:
            job, tokens, cut = await run_in_threadpool(server.service.read_pairs, body.query, body.documents)
            pairs = [body.query[:MOST_CHARACTERS] + text for text in body.documents]  # whose lengths are the cost
            scores = np.concatenate(await in_pieces(server.batcher, request.receive, job, pairs))
            read = {"usage": usage(Encoded(np.empty(0), tokens))}
            if cut():
                longer = f"{cut():,} of {len(pairs):,} documents are longer than what is read"
                read["note"] = f"{longer}: only their beginnings are scored; split them into passages"
    best = np.argsort(-scores, kind="stable")[: body.top_n].tolist()
    results: list[dict[str, Any]] = [{"index": n, "relevance_score": scores[n]} for n in best]
    for result in results if body.return_documents else ():
        result["document"] = {"text": body.documents[result["index"]]}
    return _json({"model": body.model or model.name, "results": results, **read})


@router.post("/search")
async def find(request: Request, body: SearchRequest) -> Response:
    """Finds the documents that answer a question."""
    start, server = time.perf_counter(), server_of(request)
    index, k = server.service.index, body.k or min(10, server.limits.max_k)
    check_texts("query", [body.query], server.limits)
    if not body.query.strip():
        raise Refusal(422, "query: is empty", param="query", code="empty")
    if k > server.limits.max_k:
        raise Refusal(422, f"k: at most {server.limits.max_k}, not {k}", param="k")
    if body.where is not None:
        try:
            condition(body.where)
        except EndxError as wrong:
            status = 400 if isinstance(wrong, FilterLimit) else 422
            raise Refusal(status, f"where: {wrong}", param="where") from None
    mode = body.mode or index.default_mode
    job, reason = SearchJob(body.query, k, mode, body.where), ""
    with server.batcher.request():
        results, encoded = await while_connected(request.receive, server.batcher.submit(job, cost([body.query])))
        if body.where and not results:
            reason = await run_in_threadpool(lambda: why_nothing(index.snapshot.where, body.where or {}))
    took = round(1e3 * (time.perf_counter() - start), 3)
    note = {"note": reason} if reason else server.note({"question": encoded}) if results and encoded else {}
    return _json({"results": results, "mode": mode, "took_ms": took, "documents": len(index), **note})


@router.post("/documents", status_code=201)
async def add(request: Request, body: DocumentsRequest) -> Response:
    """Adds documents; one whose id exists replaces the old one."""
    server = server_of(request)
    try:
        check_model(server.service.index, server.service.model)
    except EndxError as other:
        raise Refusal(409, f"documents: {other}", code="other_model") from None
    # A text that is split may be longer than its passages, which are checked below.
    check_texts("documents", ["" if new.split else new.text for new in body.documents], server.limits)
    check_distinct(new.id for new in body.documents if new.id)
    with server.batcher.request():
        documents = await run_in_threadpool(lambda: [part for new in body.documents for part in to_documents(new)])
        texts = [document.text for document in documents]
        check_texts("documents", texts, server.limits)
        asked = [question for document in documents for question in document.questions]
        if asked:
            check_texts("questions", asked, server.limits)
        encoded = await server.encode(request, "answer", texts)
        known = (await server.encode(request, "question", asked)).embeddings if asked else None
        # The change is made even if the client disconnects from here on.
        await asyncio.shield(run_in_threadpool(server.service.add, documents, encoded.embeddings, known))
    ids = [document.id for document in documents if document.passage < 2]
    note = server.note({"answer": encoded}, split=all(new.split for new in body.documents))
    return _json({"ids": ids, **note}, status=201)


@router.get("/documents/{id:path}")
async def read(request: Request, id: str) -> Response:
    """Returns a document."""
    server = server_of(request)
    with server.batcher.request():
        document = await run_in_threadpool(server.service.index.get, id)
    if document is None:
        raise unknown(id)
    questions = {"questions": document.questions} if document.questions else {}
    return _json({"id": document.id, "text": document.text, "metadata": document.metadata, **questions})


@router.delete("/documents/{id:path}")
async def delete(request: Request, id: str) -> Response:
    """Deletes a document."""
    server = server_of(request)
    with server.batcher.request():
        deleted = await asyncio.shield(run_in_threadpool(server.service.delete, id))
    if not deleted:
        raise unknown(id)
    return _json({"deleted": id})


@router.get("/info")
async def info(request: Request) -> Response:
    """Describes the model, the index and the limits."""
    server = server_of(request)
    service = server.service
    return _json(
        {
            "model": service.model.name,
            "documents": len(service.index),
            "modes": list(service.scores),
            "mode": service.index.default_mode,
            "scores": service.scores,
            "asymmetric": service.model.asymmetric,
            "limits": vars(server.limits),
            "version": endx_jax.__version__,
        }
    )


def unknown(id: str) -> Refusal:
    """Returns the refusal of a request for a document that does not exist."""
    return Refusal(404, f"there is no document with the id {clipped(repr(id))}", param="id", code="unknown_id")


def to_documents(new: NewDocument) -> list[Document]:
    """Returns a new document, or its passages if it is to be split and its text is long."""
    whole = Document(new.id or uuid.uuid4().hex, new.text, new.metadata or {}, tuple(new.questions or ()))
    if not new.split:
        return [whole]
    from endx_jax.data.formats.document_files import MOST, split_passages  # with all formats of data

    texts = split_passages(new.text) if len(new.text) > MOST else []
    return passages_of(whole, texts or [new.text])


def check_distinct(ids: Iterable[str]) -> None:
    """Raises Refusal if an id occurs twice."""
    if twice := [name for name, count in collections.Counter(ids).items() if count > 1]:
        raise Refusal(409, f"documents: the id {twice[0]!r} is given twice", param="documents", code="repeated_id")


def check_count(param: str, items: Sequence[object], limits: Limits) -> None:
    """Raises Refusal if there are too many texts."""
    if len(items) > limits.max_texts:
        message = f"{param}: {len(items)} texts exceed the limit of {limits.max_texts}: send them in several requests"
        raise Refusal(422, message, param=param, code="too_many_texts")


def check_texts(param: str, texts: Sequence[str], limits: Limits) -> None:
    """Raises Refusal if there are too many texts, or one that is too long."""
    check_count(param, texts, limits)
    for n, text in enumerate(texts):
        if (size := len(text.encode())) > limits.max_text_bytes:
            where = f"{param}[{n}]" if len(texts) > 1 else param
            message = f"{where}: {size} bytes exceed the limit of {limits.max_text_bytes}: send it in parts"
            raise Refusal(422, message, param=where, code="text_too_long")


def usage(*encoded: Encoded) -> dict[str, int]:
    """Returns the numbers of encoded tokens."""
    used = sum(int(part.tokens.sum()) for part in encoded)
    return {"prompt_tokens": used, "total_tokens": used}


def _task(body: EmbeddingsRequest, asymmetric: bool) -> str:
    """Returns `query` or `document`, as `input_type` or the end of the model's name says."""
    name, kind = body.model or "", "document" if body.input_type == "passage" else body.input_type or ""
    tasks = [task for task in SIDE_OF_TASK if kind.endswith(task) or name.endswith(f":{task}")]
    if len(tasks) > 1 or (asymmetric and not tasks):
        reason = "the model's name differs" if tasks else "this model embeds questions and documents differently"
        remedy = 'set it to "query" or "document", or end the model\'s name by :query or :document'
        raise Refusal(422, f"input_type: {reason}: {remedy}", param="input_type", code="missing")
    return tasks[0] if tasks else "document"


def _json(content: dict[str, Any], status: int = 200) -> Response:
    written = orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(written, status, media_type="application/json")
