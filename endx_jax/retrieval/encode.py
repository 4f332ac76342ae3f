"""Texts to embeddings, in the order given: sorted by length inside, so that little padding is computed."""

import functools
from collections.abc import Mapping, Sequence

import jax
import numpy as np
import tqdm
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from endx_jax.data.tokenization import Preparation, padded_length
from endx_jax.models.dual_encoder import DualEncoder
from endx_jax.parallel.sharding import local_rows, rounded_up, to_global

LENGTH_STEP = 16


class TextEncoder:
    """Encodes texts with either tower of a dual encoder.

    It keeps the compiled programs, one for each padded length, so make one and pass it the parameters of the day.
    """

    def __init__(self, model: DualEncoder, preparations: Mapping[str, Preparation], mesh: Mesh, batch_size: int = 64):
        """Takes what does not change between calls.

        Args:
          model: both towers.
          preparations: how texts of each side, `question` and `answer`, become tokens.
          mesh: over which each batch is split.
          batch_size: texts encoded together, rounded up to a multiple of the devices that share them.
        """
        self.model, self.preparations, self.mesh, self.batch_size = model, preparations, mesh, batch_size
        everywhere = NamedSharding(mesh, PartitionSpec())
        self._encode = {
            side: jax.jit(functools.partial(model.encode, side=side), out_shardings=everywhere) for side in preparations
        }

    def __call__(
        self, params: dict, side: str, texts: Sequence[str], *, batch_size: int | None = None, progress: bool = False
    ) -> np.ndarray:
        """Encodes texts.

        Args:
          params: the dual encoder's.
          side: `question` or `answer`.
          texts: N texts.
          batch_size: to use instead of the encoder's own.
          progress: whether to show a bar.

        Returns:
          float32 [N, E], row i for text i, the same on every process.
        """
        size = rounded_up(batch_size or self.batch_size, self.mesh)
        limit = self.preparations[side].length
        table = self.preparations[side](texts)
        order = np.argsort(-table.lengths, kind="stable")
        rows = local_rows(self.mesh, size)
        parts = []
        for start in tqdm.trange(
            0, len(texts), size, desc=f"encoding {side}s", unit="batch", disable=not progress, leave=False
        ):
            chosen = order[start : start + size]
            length = padded_length(table.lengths[chosen[0]], limit, LENGTH_STEP)
            filled = np.resize(chosen, size)  # the last batch repeats its rows
            tokens = to_global(table.pad(filled[rows], length), self.mesh, size)
            parts.append(self._encode[side](params, tokens=tokens)[: len(chosen)])
        if not parts:
            return np.zeros((0, 0), np.float32)
        embeddings = np.concatenate(jax.device_get(parts))
        restored = np.empty_like(embeddings)
        restored[order] = embeddings
        return restored
