"""Text encoder of a dual encoder of which only the heads are trained: the vectors below them are computed once."""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import jax
import numpy as np
import tqdm
from jax.sharding import NamedSharding, PartitionSpec

from endx_jax.batch import Vectors
from endx_jax.data.batches.token_tables import VectorTable
from endx_jax.inference.encode import TextEncoder
from endx_jax.inference.identity import model_identity
from endx_jax.inference.text_batches import compute_batches, equal_batches
from endx_jax.inference.vector_cache import VectorCache
from endx_jax.models.dual_encoder import SIDES
from endx_jax.numerics import round_up
from endx_jax.parallel.console import say, showing_progress
from endx_jax.parallel.sharding import batch_shards, put, state_shardings

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
    """Text encoder with the interface of `TextEncoder` whose inputs of the heads are computed at first use and kept.

    They are kept in memory, and in the cache if it has a folder.
    """

    def __init__(self, encoder: TextEncoder, params: dict, cache: VectorCache):
        """Takes an encoder of embeddings, the initial parameters and a cache; places the parameters below the heads."""
        self._mesh, self._cache = encoder.mesh, cache
        model = encoder.model
        self._base = TextEncoder(model, encoder.processors, self._mesh, encoder.batch_size, part=model.base)
        below = {part: {g: p for g, p in groups.items() if g != "head"} for part, groups in params.items()}
        below = {part: groups for part, groups in below.items() if groups}
        self._params = put(below, state_shardings(below, self._mesh))
        self._known: dict[str, dict[str, np.ndarray]] = {side: {} for side in SIDES}
        replicated = NamedSharding(self._mesh, PartitionSpec())
        self._heads = jax.jit(model.encode, static_argnums=1, out_shardings=replicated)

    def __call__(self, params: dict, side: str, texts: Sequence[str], *, progress: bool = False) -> np.ndarray:
        """Encodes N >= 1 texts of a side with the parameters of the dual encoder; returns float32 [N, E]."""
        values = self.vectors(side, texts)
        size = round_up(min(HEADS_BLOCK, len(values)), batch_shards(self._mesh))
        blocks = equal_batches(len(values), size, self._mesh, lambda rows: Vectors(values[rows]))
        bar = tqdm.tqdm(total=len(values), desc=f"encoding {side}s", unit="text", disable=not progress, leave=False)
        return compute_batches(blocks, lambda vectors: self._heads(params, side, vectors), self._mesh, bar)

    def vectors(self, side: str, texts: Sequence[str]) -> np.ndarray:
        """Returns the inputs of one side's head for N texts, float32 [N, E]: see `Tower.base`."""
        by_text = self._known[side]
        if any(text not in by_text for text in texts):
            say(f"computing the inputs of the heads once, for {len(texts):,} {side}s")
            encode = functools.partial(self._base, self._params, side, progress=showing_progress())
            width, about = self._base.width(self._params), ("base", side, self._below)
            values = self._cache.embeddings(encode, texts, about, width, name="the pretrained model")
            by_text.update(zip(texts, values, strict=True))
        return np.stack([by_text[text] for text in texts])

    @functools.cached_property
    def _below(self) -> str:
        """Identity of the towers without their heads, and data types that affect the inputs of the heads."""
        model = self._base.model
        question, answer = (model.tower(side).clone(head=None) for side in SIDES)
        below = dataclasses.replace(model, question=question, answer=answer)
        identity = model_identity(below, self._params, self._base.processors)
        dtypes = [[str(tower.token_embedder.dtype), tower.product_dtype] for tower in (question, answer)]
        return " ".join([identity, *(name for pair in dtypes for name in dict.fromkeys(pair) if name)])

    @property
    def readers(self) -> dict[str, Reader]:
        """Text readers of the training data by side."""
        return {side: Reader(functools.partial(self.vectors, side)) for side in SIDES}

    def identity(self, params: dict) -> str:
        """Returns the identity of the whole model: see `TextEncoder.identity`."""
        return self._base.identity(params)
