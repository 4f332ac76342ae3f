"""Training of heads on frozen encoders, whose outputs are computed once for training, validation and ranking."""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import jax
import numpy as np
import tqdm
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from endx_jax.batch import Vectors
from endx_jax.data.batches.token_tables import VectorTable
from endx_jax.experiment.model import Model
from endx_jax.inference.encode import TextEncoder
from endx_jax.inference.text_batches import compute_batches, equal_batches
from endx_jax.inference.vector_cache import VectorCache, base_vectors, below_heads
from endx_jax.models.dual_encoder import SIDES
from endx_jax.parallel.console import say, showing_progress
from endx_jax.parallel.sharding import place, rounded_up, state_shardings

BLOCK = 4096  # number of vectors that heads encode at a time


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

    The inputs of the heads are computed at first use and kept in `data.cache`, or in memory if there is no cache.
    """

    def __init__(self, model: Model, mesh: Mesh):
        """Reads the frozen parameters below the heads."""
        settings = model.settings
        self._mesh = mesh
        self._base = TextEncoder(
            model.dual_encoder, model.processors, mesh, settings.evaluation.batch_size, part=model.dual_encoder.base
        )
        params = below_heads(model.initial_params()["dual_encoder"])
        self._params = place(params, state_shardings(params, mesh))
        self._cache = VectorCache(settings.data.cache)
        self._known: dict[str, dict[str, np.ndarray]] = {side: {} for side in SIDES}
        replicated = NamedSharding(mesh, PartitionSpec())
        self._heads = jax.jit(model.dual_encoder.encode, static_argnums=1, out_shardings=replicated)

    def __call__(self, params: dict, side: str, texts: Sequence[str], *, progress: bool = False) -> np.ndarray:
        """Encodes N >= 1 texts of a side with the parameters of the dual encoder; returns float32 [N, E]."""
        values = self.vectors(side, texts)
        size = rounded_up(min(BLOCK, len(values)), self._mesh)
        blocks = equal_batches(len(values), size, self._mesh, lambda rows: Vectors(values[rows]))
        bar = tqdm.tqdm(total=len(values), desc=f"encoding {side}s", unit="text", disable=not progress, leave=False)
        return compute_batches(blocks, lambda vectors: self._heads(params, side, vectors), self._mesh, bar)

    def vectors(self, side: str, texts: Sequence[str]) -> np.ndarray:
        """Returns the inputs of one side's head for N texts, float32 [N, E]."""
        known = self._known[side]
        if any(text not in known for text in texts):
            progress = showing_progress()
            say(f"computing the inputs of the heads once, for {len(texts):,} {side}s")
            values = base_vectors(self._base, self._params, side, texts, self._cache, progress=progress)
            known.update(zip(texts, values, strict=True))
        return np.stack([known[text] for text in texts])

    @property
    def readers(self) -> dict[str, Reader]:
        """Text readers of the training data by side."""
        return {side: Reader(functools.partial(self.vectors, side)) for side in SIDES}

    def identity(self, params: dict) -> str:
        """Returns the identity of the whole model: see `TextEncoder.identity`."""
        return self._base.identity(params)
