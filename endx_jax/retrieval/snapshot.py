"""What an index holds at one moment: readers work with it while the index goes on to the next."""

import functools
from collections.abc import Iterator, Sequence

import numpy as np

from endx_jax.data.documents import Document
from endx_jax.retrieval.quantize import Quantized, dequantize
from endx_jax.retrieval.resident import Resident, fits
from endx_jax.retrieval.search import Neighbours, none_found, top_k
from endx_jax.retrieval.shards import Manifest
from endx_jax.retrieval.stored import Rows, StoredShard


class Snapshot:
    """Shards that are open, and which of their rows are there.

    Attributes:
      manifest: what is open.
      shards: as the manifest names them.
      living: bool [rows], those not deleted.
    """

    def __init__(self, manifest: Manifest, shards: Sequence[StoredShard], before: "Snapshot | None" = None):
        """Takes the open shards.

        Args:
          manifest: of the index.
          shards: opened.
          before: an earlier state, the rows of which are the first of this one; what of it is on the devices stays.
        """
        self.manifest, self.shards = manifest, tuple(shards)
        self._starts = np.cumsum([0, *(len(shard.documents) for shard in shards)])
        self.living = np.ones(self._starts[-1], bool)
        self.living[list(manifest.deleted)] = False
        self._before: Resident | None = vars(before).get("resident", before._before) if before else None

    def __len__(self) -> int:
        """How many documents there are."""
        return len(self.living) - len(self.manifest.deleted)

    def document(self, row: int) -> Document:
        """The document of a row, deleted or not."""
        shard = int(np.searchsorted(self._starts, row, side="right")) - 1
        return self.shards[shard].documents[row - int(self._starts[shard])]

    def documents(self, start: int = 0) -> Iterator[tuple[int, Document]]:
        """The rows from `start` on that are there, and their documents, read as they are asked for."""
        for row in (np.flatnonzero(self.living[start:]) + start).tolist():
            yield row, self.document(row)

    def search(self, questions: np.ndarray, k: int) -> Neighbours:
        """The k documents with the highest inner products for questions [Q, E], exactly; all if there are fewer.

        Where the devices have room for the embeddings they stay there, else they are streamed: see `search.top_k`.

        Raises:
          EndxError: questions are of another width, or k is below 1.
        """
        if not self.shards:
            return none_found(len(questions), 0)
        if self.resident is not None:
            return self.resident.search(questions, k)
        return top_k(questions, self.embeddings, k, scales=self.scales, where=self.living)

    @functools.cached_property
    def embeddings(self) -> Rows:
        """[rows, E], as stored."""
        return Rows([shard.embeddings for shard in self.shards])

    @functools.cached_property
    def scales(self) -> Rows | None:
        """float32 [rows] of int8 embeddings."""
        parts = [shard.scales for shard in self.shards if shard.scales is not None]
        return Rows(parts) if parts else None

    @functools.cached_property
    def resident(self) -> Resident | None:
        """The embeddings on the devices, if there is room."""
        size = sum(shard.embeddings.nbytes for shard in self.shards)
        before, self._before = self._before, None
        return Resident(self.embeddings, self.scales, self.living, before) if fits(size) else None

    def vectors(self, start: int, stop: int) -> np.ndarray:
        """Embeddings of rows `start:stop`, float32 [n, E], those of deleted documents too."""
        rows = self.embeddings[start:stop]
        if self.scales is None:
            return np.ascontiguousarray(rows, np.float32)
        return np.asarray(dequantize(Quantized(rows, self.scales[start:stop])))

    def parts(self, size: int = 4096) -> Iterator[tuple[np.ndarray, np.ndarray, list[Document]]]:
        """What is there, up to `size` at a time: rows [n], embeddings float32 [n, E], and n documents."""
        for start in range(0, len(self.living), size):
            rows = np.flatnonzero(self.living[start : start + size]) + start
            yield rows, self.vectors(start, start + size)[rows - start], [self.document(row) for row in rows.tolist()]
