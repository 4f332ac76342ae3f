"""Vectors of many texts, computed once and cached on disk under the hash of their inputs; heads on such vectors.

An entry is one `.npy` file, float32 [N, ...], followed by a checksum. It is memory-mapped, so it may be larger than
memory. An entry with a wrong shape or checksum counts as missing and is written again.
"""

import dataclasses
import functools
import os
import pathlib
import tokenize
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, cast

import jax
import numpy as np
import tqdm
from jax.sharding import NamedSharding, PartitionSpec

from endx_jax.batch import Vectors
from endx_jax.data.batches.token_tables import VectorTable, content_key
from endx_jax.errors import EndxError
from endx_jax.files import CacheFolder
from endx_jax.inference.encode import TextEncoder
from endx_jax.inference.identity import model_identity
from endx_jax.inference.text_batches import compute_batches, equal_batches
from endx_jax.models.dual_encoder import SIDES
from endx_jax.parallel.agreement import all_gather
from endx_jax.parallel.console import say, showing_progress
from endx_jax.parallel.sharding import put, rounded_up, state_shardings

CHECKSUM = np.dtype("<u4")
BLOCK = 1 << 14  # texts encoded at a time, which bounds the memory of vectors that are cached on disk


class VectorCache:
    """Cache of vectors in a folder, by the hash of their inputs."""

    def __init__(self, folder: str | os.PathLike = ""):
        """Stores the folder, in which `~` is the home directory, or "" to cache nothing; creates nothing yet."""
        self._folder = CacheFolder(folder) if folder else None

    def vectors(self, key: str, shape: tuple[int, ...], blocks: Callable[[], Iterable[np.ndarray]]) -> np.ndarray:
        """Returns the vectors of a key, computing them if missing; of several processes, all compute them or none.

        Args:
          key: hash of all inputs; see `data.batches.token_tables.content_key`.
          shape: [N, ...]; an entry of another shape counts as missing.
          blocks: computes the vectors in order, [n, ...] at a time.

        Returns:
          float32 [N, ...], memory-mapped and read-only; in memory if the folder can't be written.
        """
        if self._folder is None:
            return np.concatenate([*blocks()])
        name = f"vectors-{key}.npy"
        file = self._folder.path(name)
        vectors = _read(file, shape)
        if not all(all_gather(vectors is not None, "cached")):
            computed = iter(blocks())
            self._folder.write(name, lambda stream: _write(stream, shape, computed))
            rest = [*computed]  # of several processes, those that can't write take part too
            vectors = _read(file, shape)
            if vectors is None and sum(map(len, rest)) == shape[0]:
                vectors = np.concatenate(rest)
            if not all(all_gather(vectors is not None, "cached")):
                vectors = np.concatenate([*blocks()])
        return cast(np.ndarray, vectors)

    def embeddings(
        self,
        encode: Callable[[Sequence[str]], np.ndarray],
        texts: Sequence[str],
        about: tuple[str, ...],
        width: int,
        *,
        name: str,
    ) -> np.ndarray:
        """Returns the embeddings of N texts, float32 [N, E], computed once.

        Args:
          encode: function from n texts to their embeddings [n, E].
          texts: N texts.
          about: everything else that determines the embeddings: their kind, the side and the identity of the model.
          width: E.
          name: name of the model in errors.

        Raises:
          EndxError: an embedding is not finite.
        """

        def blocks() -> Iterator[np.ndarray]:
            for start in range(0, max(1, len(texts)), BLOCK):
                block = encode(texts[start : start + BLOCK])
                if not np.isfinite(block).all():
                    row = start + int((~np.isfinite(block)).any(axis=1).argmax())
                    raise EndxError(
                        f"{name} gives an embedding that is not finite for the text {texts[row][:60]!r}: use another "
                        "model"
                    )
                yield block

        return self.vectors(content_key(texts, *about), (len(texts), width), blocks)


def _read(file: pathlib.Path, shape: tuple[int, ...]) -> np.ndarray | None:
    try:
        vectors = np.load(file, mmap_mode="r", allow_pickle=False)
        checksum = np.fromfile(file, CHECKSUM, offset=vectors.offset + vectors.nbytes)
    except (OSError, ValueError, EOFError, tokenize.TokenError):  # missing, truncated, or not an array
        return None
    sound = vectors.shape == shape and vectors.dtype == np.float32 and checksum.tolist() == [zlib.crc32(vectors.data)]
    return np.asarray(vectors) if sound else None  # np.memmap slows down every access


def _write(stream: IO[bytes], shape: tuple[int, ...], blocks: Iterable[np.ndarray]) -> None:
    header = {"descr": np.dtype(np.float32).str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)
    checksum = 0
    for block in blocks:
        values = np.ascontiguousarray(block, np.float32).data
        checksum = zlib.crc32(values, checksum)
        stream.write(values)
    stream.write(np.array(checksum, CHECKSUM).tobytes())


def base_vectors(
    encoder: TextEncoder, params: dict, side: str, texts: Sequence[str], cache: VectorCache, *, progress: bool = False
) -> np.ndarray:
    """Computes the input of the head of one side's tower for N texts: see `Tower.base`.

    Args:
      encoder: encoder with `part=model.base`.
      params: parameters; those of heads have no effect.
      side: `question` or `answer`.
      texts: N texts.
      cache: cache of the vectors.
      progress: show a progress bar.

    Returns:
      float32 [N, E], memory-mapped if cached.
    """
    model = encoder.model
    question, answer = (model.tower(side).clone(head=None) for side in SIDES)
    below = dataclasses.replace(model, question=question, answer=answer)
    identity = model_identity(below, below_heads(params), encoder.processors)
    towers = [model.tower(side) for side in SIDES]
    dtypes = [name for tower in towers for name in {str(tower.token_embedder.dtype): 0, tower.product_dtype: 0} if name]
    return cache.embeddings(
        functools.partial(encoder, params, side, progress=progress),
        texts,
        ("base", side, " ".join([identity, *dtypes])),
        encoder.width(params),
        name="the pretrained model",
    )


def below_heads(dual_encoder: dict) -> dict:
    """Returns a dual encoder's parameters without those of its heads."""
    towers = {place: {g: p for g, p in groups.items() if g != "head"} for place, groups in dual_encoder.items()}
    return {place: groups for place, groups in towers.items() if groups}


HEADS_BLOCK = 4096  # number of vectors that heads encode at a time


@dataclasses.dataclass(frozen=True)
class Reader:
    """Text reader of one side whose batches hold vectors instead of tokens.

    Attributes:
      vectors: function from N texts to vectors [N, D].
      length: maximum length in tokens; 0, since batches hold no tokens.
    """

    vectors: Callable[[Sequence[str]], np.ndarray]
    length: int = 0

    def __call__(self, texts: Sequence[str]) -> VectorTable:
        """Returns the vectors of N texts."""
        return VectorTable(self.vectors(texts))


class HeadEncoder:
    """Text encoder with the interface of `TextEncoder` for a dual encoder of which only the heads are trained.

    The inputs of the heads are computed at first use and kept in the cache, or in memory if it has no folder.
    """

    def __init__(self, encoder: TextEncoder, params: dict, cache: VectorCache):
        """Takes an encoder of embeddings, the initial parameters and a cache; places the parameters below the heads."""
        self._mesh, self._cache = encoder.mesh, cache
        model = encoder.model
        self._base = TextEncoder(model, encoder.processors, self._mesh, encoder.batch_size, part=model.base)
        params = below_heads(params)
        self._params = put(params, state_shardings(params, self._mesh))
        self._known: dict[str, dict[str, np.ndarray]] = {side: {} for side in SIDES}
        replicated = NamedSharding(self._mesh, PartitionSpec())
        self._heads = jax.jit(model.encode, static_argnums=1, out_shardings=replicated)

    def __call__(self, params: dict, side: str, texts: Sequence[str], *, progress: bool = False) -> np.ndarray:
        """Encodes N >= 1 texts of a side with the parameters of the dual encoder; returns float32 [N, E]."""
        values = self.vectors(side, texts)
        size = rounded_up(min(HEADS_BLOCK, len(values)), self._mesh)
        blocks = equal_batches(len(values), size, self._mesh, lambda rows: Vectors(values[rows]))
        bar = tqdm.tqdm(total=len(values), desc=f"encoding {side}s", unit="text", disable=not progress, leave=False)
        return compute_batches(blocks, lambda vectors: self._heads(params, side, vectors), self._mesh, bar)

    def vectors(self, side: str, texts: Sequence[str]) -> np.ndarray:
        """Returns the inputs of one side's head for N texts, float32 [N, E]."""
        by_text = self._known[side]
        if any(text not in by_text for text in texts):
            progress = showing_progress()
            say(f"computing the inputs of the heads once, for {len(texts):,} {side}s")
            values = base_vectors(self._base, self._params, side, texts, self._cache, progress=progress)
            by_text.update(zip(texts, values, strict=True))
        return np.stack([by_text[text] for text in texts])

    @property
    def readers(self) -> dict[str, Reader]:
        """Text readers of the training data by side."""
        return {side: Reader(functools.partial(self.vectors, side)) for side in SIDES}

    def identity(self, params: dict) -> str:
        """Returns the identity of the whole model: see `TextEncoder.identity`."""
        return self._base.identity(params)
