"""Vectors in the place of texts: what training reads where everything below the heads of the towers is frozen."""

import dataclasses

import numpy as np

from endx_jax.batch import Vectors


@dataclasses.dataclass(frozen=True)
class VectorTable:
    """Vectors of N texts, as `TokenTable` has tokens.

    Attributes:
      values: float32 [N, D]; may be mapped from a file.
    """

    values: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        """Int64 [N], zeros: there is no token left."""
        return np.zeros(len(self.values), np.int64)

    def pad(self, rows: np.ndarray, length: int) -> Vectors:
        """The vectors of the given texts, NumPy [..., D] for rows [...]; there is nothing to pad to a `length`."""
        del length
        return Vectors(self.values[rows])
