"""BM25 of the passages of an index: counts of their words, which are kept in a cache and follow the index."""

import operator
import threading
from collections.abc import Sequence

import numpy as np

from endx_jax.index.cache import DOCUMENTS, WORDS, Cache, adopt, is_behind, make_cache, open_cache
from endx_jax.index.snapshot import Snapshot
from endx_jax.ranking.bm25 import BM25, Postings, highest
from endx_jax.ranking.hybrid import Ranking
from endx_jax.ranking.words import WordTokenizer

# Texts that are split into words at a time.
STEP = 65536
# Texts up to which the counts of those that are added are joined.
JOINED = 4096


class Lexical:
    """Ranks the passages of an index by BM25.

    A passage's words are those of its text; a document's first passage also has those of its known questions. They
    are split once, and their counts are kept beside the index. Threads may share it.
    """

    def __init__(self):
        self._lock, self._tokenizer = threading.Lock(), WordTokenizer()
        self._snapshot: Snapshot | None = None
        self._start(None)

    def _start(self, cache: Cache | None) -> None:
        """Takes counts from a cache, or forgets those there are."""
        arrays = cache.arrays if cache else {}
        self._rows, self._documents = (arrays.get(name, np.zeros(0, np.int64)) for name in ("rows", DOCUMENTS))
        self._parts, self._kept = [_postings(arrays)] if cache else [], len(self._rows)

    def rank(
        self, snapshot: Snapshot, questions: Sequence[str], k: int, where: np.ndarray | None = None
    ) -> list[Ranking]:
        """Finds up to k rows per question with their scores, best first; rows that share no word with it are omitted.

        `where`, bool [rows], is true for rows to search; None: all that are not deleted.

        Raises:
          EndxError: PyStemmer is not installed.
        """
        if not snapshot.passages:
            return [[] for _ in questions]
        with self._lock:
            if self._snapshot is not snapshot:
                self._follow(snapshot)
            bm25, places = self._bm25, self._places
        selected = 1 if where is None else where[places]
        score_block = bm25.scaled_block(questions)  # one at a time: each needs a score for every document
        scores = (score_block(n, n + 1)[0] * selected for n in range(len(questions)))
        return [[(int(places[n]), float(line[n])) for n in highest(line, k)] for line in scores]

    def _follow(self, snapshot: Snapshot) -> None:
        """Counts the words of what was added to an index, and selects what was not deleted."""
        store, info, before = snapshot.store, snapshot.info, self._snapshot
        about = {"content": info.content, "language": info.language, "version": self._tokenizer.version}
        origin = operator.attrgetter("store", "info.content", "info.language")
        if before is None or origin(before) != origin(snapshot):
            self._tokenizer = WordTokenizer(info.language)
            self._start(open_cache(store, WORDS, about))
        self._add(snapshot)
        living = np.isin(self._rows, snapshot.rows[snapshot.living])
        if 2 * np.count_nonzero(living) < len(living):
            self._start(None)
            self._add(snapshot)
            living = np.isin(self._rows, snapshot.rows[snapshot.living])
        if is_behind(self._kept, len(self._rows) - self._kept):
            self._keep(snapshot, about)
        # The last row for those of a later snapshot, which are not living.
        self._places = np.minimum(np.searchsorted(snapshot.rows, self._rows), len(snapshot.rows) - 1)
        self._bm25 = BM25(self._parts, self._tokenizer, None if living.all() else living)
        self._snapshot = snapshot

    def _add(self, snapshot: Snapshot) -> None:
        """Counts the words of the rows that were added since the last ones that are counted."""
        last = self._rows[-1] if len(self._rows) else 0
        for start in range(int(np.searchsorted(snapshot.rows, last, "right")), len(snapshot.rows), STEP):
            stop = min(start + STEP, len(snapshot.rows))
            documents = snapshot.documents(range(start, stop))
            listed = (documents.get(row) for row in range(start, stop))
            texts = [" ".join([one.text, *(one.questions if one.passage < 2 else ())]) if one else "" for one in listed]
            part = Postings.of(self._tokenizer.documents(texts))
            few = len(self._parts) > 1 and len(self._parts[-1].lengths) < JOINED
            self._parts = [*self._parts[:-1], Postings.joined([self._parts[-1], part])] if few else [*self._parts, part]
            self._rows = np.concatenate([self._rows, snapshot.rows[start:stop]])
            self._documents = np.concatenate([self._documents, snapshot.of[start:stop]])

    def _keep(self, snapshot: Snapshot, about: dict[str, str]) -> None:
        """Writes the counts to the cache and maps them from there."""
        whole = Postings.joined(self._parts)
        words = np.frombuffer("".join(f"{word}\n" for word in whole.words).encode(), np.uint8)
        arrays = {"rows": self._rows, DOCUMENTS: self._documents, "words": words, "starts": whole.starts}
        arrays |= {"texts": whole.texts, "counts": whole.counts, "lengths": whole.lengths}

        def fill(empty: dict[str, np.ndarray]) -> None:
            for name, values in arrays.items():
                empty[name][:] = values

        shapes = {name: (values.dtype, values.shape) for name, values in arrays.items()}
        cache = make_cache(snapshot.store, WORDS, about, shapes, fill, rows=len(self._rows))
        adopt(snapshot.store, WORDS, cache)
        self._start(cache)


def _postings(arrays: dict[str, np.ndarray]) -> Postings:
    words = arrays["words"].tobytes().decode().split("\n")[:-1]
    numbers = {word: n for n, word in enumerate(words)}
    return Postings(words, numbers, *(arrays[name] for name in ("starts", "texts", "counts", "lengths")))
