"""Jobs of the compute thread (questions and texts), their computation in batches, and changes of the index."""

import dataclasses
import functools
import gc
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from endx_jax.data.batches.ragged import RaggedVectors, concatenate
from endx_jax.data.sets.documents import Document, FoundDocument
from endx_jax.errors import EndxError
from endx_jax.index.index import Index
from endx_jax.index.index_model import pool_factor_of
from endx_jax.index.text_search import MODES
from endx_jax.inference import EmbeddingModel
from endx_jax.inference.encode import EmbeddingFormat
from endx_jax.inference.low_latency import Encoded, LowLatencyEncoder
from endx_jax.inference.token_pooling import pool_documents
from endx_jax.models.dual_encoder import SIDES
from endx_jax.numerics import unit_rows
from endx_jax.ranking.hybrid import FUSED
from endx_jax.ranking.mining import SimilaritiesOfTexts
from endx_jax.ranking.rerank import PairScorerFactory
from endx_jax.serving.settings import Limits


@dataclasses.dataclass(frozen=True)
class EncodeJob:
    """Job that encodes texts; its result is an `Encoded`.

    Attributes:
      side: `question` or `answer`.
      texts: at least one.
    """

    side: str
    texts: Sequence[str]


@dataclasses.dataclass(frozen=True)
class SearchJob:
    """Job that answers a question; its result is a `Found`.

    Attributes:
      question: a text.
      k: largest number of hits.
      mode: `dense`, `bm25` or `hybrid`.
      where: filter on the metadata of the documents; None: all documents.
    """

    question: str
    k: int
    mode: str
    where: Mapping[str, object] | None = None


def search_result(answer: FoundDocument, longest: int) -> dict[str, Any]:
    """Returns the fields of a result of `/search`, with at most `longest` characters of each.

    Metadata entries and questions are kept or dropped whole.
    """
    document = answer.document
    metadata, room = {}, longest
    for name, value in document.metadata.items():
        room -= len(name) + len(str(value))
        if room < 0:
            break
        metadata[name] = value
    ends = itertools.accumulate(map(len, document.questions))
    questions = [question for question, end in zip(document.questions, ends, strict=True) if end <= longest]
    whole = (len(metadata), len(questions)) == (len(document.metadata), len(document.questions))
    return {
        "rank": answer.rank,
        "id": document.id,
        "score": answer.score,
        **({"passage": document.passage} if document.passage else {}),
        "text": document.text[:longest],
        "metadata": metadata,
        "truncated": len(document.text) > longest or not whole,
        **({"questions": questions} if questions else {}),
    }


class Found(NamedTuple):
    """Search results of a question, each a `search_result`, and the encoded question, None in mode `bm25`."""

    results: list[dict[str, Any]]
    encoded: Encoded | None


Result = Encoded | np.ndarray | Found | None
# Any other job is a function that the compute thread calls.
Job = EncodeJob | SearchJob | Callable[[], Result]


def to_encode(job: Job) -> tuple[str, Sequence[str]]:
    """Returns the side and the texts that have to be encoded for a job; there may be no texts."""
    match job:
        case EncodeJob():
            return job.side, job.texts
        case SearchJob() if job.mode != "bm25":
            return "question", [job.question]
        case _:
            return "question", []


# Numbers of questions that searches are compiled for; the last is the largest of a batch.
QUESTIONS = (1, 8, 16, 32, 64)
K = 10


Preparation = tuple[str, Callable[[], object]]  # a step and its description


class Service:
    """Model with an index of its embeddings.

    Several threads may call `run`. `add` and `delete` may wait for another process and belong in another one.

    Attributes:
      model: embedding model.
      index: open index.
      pairs: cross-encoder that re-ranks; None: the model's embeddings do.
    """

    def __init__(
        self,
        model: EmbeddingModel,
        index: Index,
        max_text: int = Limits.max_text,
        pairs: PairScorerFactory | None = None,
    ):
        """Stores the parts; `max_text` is the largest number of characters of text, and of metadata, in a hit."""
        by_tokens = SimilaritiesOfTexts(model.ranked, True) if model.by_token else None
        self.model, self.index, self.pairs, self._max_text = model, index, pairs or by_tokens, max_text
        # Of the whole width, as an index may be wider than the embeddings that the model returns by default.
        output = EmbeddingFormat(normalize=model.cosine)
        self._encode = LowLatencyEncoder(model.encoder, model.params, output)

    @property
    def scores(self) -> dict[str, str]:
        """Descriptions of the scores, by mode."""
        product = f"{'cosine' if self.model.cosine else 'inner product'} of embeddings"
        dense = "MaxSim divided by the question's tokens" if self.model.by_token else product
        return {"dense": dense, "bm25": "BM25", "hybrid": str(self.index.hybrid)}

    def preparations(self) -> list[Preparation]:
        """Returns the steps after which any question is answered in the default mode, by a program for any length."""
        widest = max(shape for shape in self._encode.shapes if shape[:2] == ("question", 1))
        return [
            ("encoding", functools.partial(self._encode.warm_up, widest)),
            ("search", self._search(self.index.default_mode, 1)),
        ]

    def later_preparations(self) -> list[Callable[[], Any]]:
        """Returns the steps that compile all other programs, of which a request takes those that are there.

        The last one keeps the objects so far from garbage collection.
        """
        shapes = sorted(self._encode.shapes, key=lambda shape: shape[1:])
        encoding = [functools.partial(self._encode.warm_up, shape) for shape in shapes]
        return [*encoding, *(self._search(mode, count) for count in QUESTIONS for mode in MODES), _settle]

    def _search(self, mode: str, count: int) -> Callable[[], Any]:
        """Returns the step that compiles the programs of a search for `count` questions."""

        def search() -> None:
            for result in self.run([SearchJob("warm up", K, mode)] * count):
                if isinstance(result, Exception):
                    raise result

        return search

    def run(self, jobs: Sequence[Job]) -> list[Result | Exception]:
        """Computes a batch; the result of a job that fails with an `EndxError` is that error."""
        results: list[Result | Exception] = [None] * len(jobs)
        encoded = self._encodings(jobs)
        searches: dict[tuple[str, str, int], list[int]] = {}
        for n, job in enumerate(jobs):
            try:
                match job:
                    case EncodeJob():
                        results[n] = encoded[n]
                    case SearchJob():
                        # Scores of a fusion depend on the depth of the search, which is a multiple of k for passages.
                        snapshot = self.index.snapshot
                        depth = max(job.k, FUSED) if len(snapshot) == snapshot.passages else job.k
                        key = job.mode, json.dumps(job.where), depth
                        searches.setdefault(key, []).append(n)
                    case _:
                        results[n] = job()
            except EndxError as failure:
                results[n] = failure
        for places in searches.values():
            questions = [job for job in (jobs[n] for n in places) if isinstance(job, SearchJob)]
            of = [encoded[n].embeddings for n in places if n in encoded]  # none in mode bm25
            for n, answers in zip(places, self._answers(questions, concatenate(of) if of else None), strict=True):
                results[n] = answers if isinstance(answers, EndxError) else Found(answers, encoded.get(n))
        return results

    def add(self, documents: Sequence[Document], embeddings: np.ndarray | RaggedVectors, known=None) -> None:
        """Adds or replaces documents by n texts, with the model's embeddings [n, E] and those of known questions."""
        factor = pool_factor_of(self.index)
        if isinstance(embeddings, RaggedVectors) and factor > 1:
            embeddings = pool_documents(embeddings, dataclasses.replace(self.model.token_pooling, factor=factor))
        vectors = [None if x is None else self._truncated(x) for x in (embeddings, known)]
        self.index.add(documents, vectors[0], known=vectors[1], replace=True)

    def delete(self, identifier: str) -> bool:
        """Deletes a document; returns false if there is none with this id."""
        return identifier in self.index and self.index.delete([identifier], missing_ok=True) > 0

    def read_pairs(
        self, question: str, texts: Sequence[str]
    ) -> tuple[Callable[[Sequence], Job], np.ndarray, Callable[[], int]]:
        """Returns a function that makes the next texts' job, tokens [n], and a counter of cut texts; in any thread."""
        assert self.pairs is not None
        processors = getattr(self.pairs, "processors", None) or self.model.encoder.processors
        first, second = (processors[side](of) for side, of in zip(SIDES, ([question], texts), strict=True))
        score, rows = self.pairs([question], texts), iter(np.ndindex(1, len(texts)))  # each text is tokenized once
        job = lambda piece: functools.partial(score, np.array([*itertools.islice(rows, len(piece))]))  # noqa: E731
        return job, first.lengths + second.lengths, lambda: getattr(score, "cut", second.cut)

    def _encodings(self, jobs: Sequence[Job]) -> dict[int, Encoded]:
        """Encodes the texts of all jobs, those of a side together; returns the results by position of the job."""
        encodings = {}
        needed = [to_encode(job) for job in jobs]
        for side in SIDES:
            texts = {n: texts for n, (of, texts) in enumerate(needed) if of == side and texts}
            if not texts:
                continue
            encoded = self._encode(side, list(itertools.chain.from_iterable(texts.values())))
            stop = 0
            for n in texts:
                start, stop = stop, stop + len(texts[n])
                encodings[n] = Encoded(*(values[start:stop] for values in encoded))
        return encodings

    def _truncated(self, embeddings: Any) -> Any:
        """Truncates embeddings to the width of the index."""
        return truncate_width(embeddings, self.index.snapshot.info.width, self.model.cosine)

    def _answers(
        self, questions: Sequence[SearchJob], embeddings: np.ndarray | None
    ) -> Sequence[list[dict[str, Any]] | EndxError]:
        """Returns the results of questions of one mode and filter; `embeddings` [Q, E] are None in mode bm25."""
        texts, most = [job.question for job in questions], max(job.k for job in questions)
        mode, where = questions[0].mode, questions[0].where
        try:
            vectors = None if embeddings is None else self._truncated(embeddings)
            answers = self.index.search(texts, most, embeddings=vectors, mode=mode, where=where)
        except EndxError as failure:
            return [failure] * len(questions)
        return [
            [search_result(answer, self._max_text) for answer in ranked[: job.k]]
            for job, ranked in zip(questions, answers, strict=True)
        ]


def _settle() -> None:
    """Excludes the existing objects from garbage collection, which takes 0.3 s for them and blocks all requests."""
    gc.collect()
    gc.freeze()


def truncate_width(embeddings: Any, width: int, cosine: bool) -> Any:
    """Truncates embeddings, float32 [N, E], to `width` dimensions, and normalizes them again if `cosine` is true."""
    if isinstance(embeddings, RaggedVectors) or width == embeddings.shape[1]:
        return embeddings
    part = np.ascontiguousarray(embeddings[:, :width])
    return unit_rows(part) if cosine else part
