"""What the server works out: batches of questions, texts and documents, all in one thread."""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from endx_jax.errors import EndxError
from endx_jax.loading import EmbeddingModel
from endx_jax.numerics import unit_rows
from endx_jax.retrieval.encode import Output
from endx_jax.retrieval.text_search import Answer, TextSearch
from endx_jax.retrieval.warm import Encoded, WarmEncoder
from endx_jax.serving.works import Add, Ask, Delete, Encode, Work, to_encode

Result = Encoded | list[Answer] | bool | None

# Numbers of questions that searches are made ready for: a batch has no more.
QUESTIONS = (1, 8, 16, 32, 64)
K = 10
# Documents up to which the index of their words is built before the first question needs it: that takes some seconds.
WORDS_OF = 200_000


class Service:
    """A model and an index of its embeddings. All methods are for one thread.

    Attributes:
      model: that encodes.
      search: over the index.
    """

    def __init__(self, model: EmbeddingModel, search: TextSearch):
        self.model, self.search = model, search
        output = Output(model.truncate_dim, normalize=model.cosine)
        self._encode = WarmEncoder(model.encoder, model.params, output)

    @property
    def scores(self) -> dict[str, str]:
        """What scores are, by mode."""
        dense = f"{'cosine' if self.model.cosine else 'inner product'} of embeddings"
        return {"dense": dense, "bm25": "BM25", "hybrid": "reciprocal ranks in dense and BM25, added up"}

    def preparations(self) -> Iterator[Callable[[], object]]:
        """What to do before the first request, step by step: everything that encodes or searches is compiled."""
        for shape in self._encode.shapes:
            yield functools.partial(self._encode.warm_up, shape)
        for count in QUESTIONS:
            yield functools.partial(self.run, [Ask("warm up", K, "dense")] * count)
        if len(self.search) <= WORDS_OF:
            yield functools.partial(self.run, [Ask("warm up", K, "bm25")])

    def run(self, works: Sequence[Work]) -> list[Result | Exception]:
        """Works out a batch; what a client is to blame for becomes an `EndxError` in its place."""
        results: list[Result | Exception] = [None] * len(works)
        encoded = self._encodings(works)
        asked: dict[str, list[int]] = {}
        for n, work in enumerate(works):
            match work:
                case Encode():
                    results[n] = encoded[n]
                case Ask():
                    asked.setdefault(work.mode, []).append(n)
                case Add() | Delete():
                    results[n] = self._changed(work)
        for mode, places in asked.items():
            questions = [work for work in (works[n] for n in places) if isinstance(work, Ask)]
            embeddings = None if mode == "bm25" else self._of_index([encoded[n].embeddings for n in places])
            for n, answers in zip(places, self._answers(mode, questions, embeddings), strict=True):
                results[n] = answers
        return results

    def _encodings(self, works: Sequence[Work]) -> dict[int, Encoded]:
        """What each work needs encoded, by its place; all texts of a side at once."""
        found = {}
        for side in ("question", "answer"):
            needed = {n: to_encode(work) for n, work in enumerate(works)}
            texts = {n: own for n, (of, own) in needed.items() if of == side and own}
            if not texts:
                continue
            embeddings, tokens = self._encode(side, list(itertools.chain.from_iterable(texts.values())))
            stop = 0
            for n, own in texts.items():
                start, stop = stop, stop + len(own)
                found[n] = Encoded(embeddings[start:stop], tokens[start:stop])
        return found

    def _of_index(self, embeddings: Sequence[np.ndarray]) -> np.ndarray:
        """Embeddings [..., E] as one array like those of the index, which may be narrower."""
        return cut(np.concatenate(embeddings), self.search.width, self.model.cosine)

    def _answers(
        self, mode: str, asked: Sequence[Ask], embeddings: np.ndarray | None
    ) -> Sequence[list[Answer] | EndxError]:
        """Answers to questions of one mode, whose embeddings are [Q, E] if it needs any."""
        most = max(ask.k for ask in asked)
        try:
            found = self.search.search_embeddings(embeddings, [ask.question for ask in asked], most, mode=mode)
        except EndxError as mistake:
            return [mistake] * len(asked)
        return [answers[: ask.k] for ask, answers in zip(asked, found, strict=True)]

    def _changed(self, work: Add | Delete) -> bool | EndxError | None:
        """Changes the index."""
        try:
            if isinstance(work, Add):
                self.search.add(work.documents, self._of_index([work.embeddings]))
                return None
            known = work.id in self.search
            if known:
                self.search.delete([work.id])
            return known
        except EndxError as mistake:
            return mistake


def cut(embeddings: np.ndarray, width: int, cosine: bool) -> np.ndarray:
    """The leading dimensions of float32 [N, E], of unit norm again where they are compared by cosine."""
    if width == embeddings.shape[1]:
        return embeddings
    part = np.ascontiguousarray(embeddings[:, :width])
    return unit_rows(part) if cosine else part
