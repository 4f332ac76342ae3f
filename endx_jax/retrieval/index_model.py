"""The model of an index, found, loaded and checked against it."""

import os
import pathlib
from collections.abc import Callable

import numpy as np

from endx_jax.errors import EndxError
from endx_jax.inference import EmbeddingModel, load
from endx_jax.inference.saved import ABOUT, MODEL
from endx_jax.retrieval.index import Index


class IndexModel:
    """Encodes questions and documents for one index, as its own were: of its width, and of unit norm if they are.

    Attributes:
      model: that does it.
    """

    def __init__(self, index: Index, path_or_name: str | os.PathLike | None = None):
        """Loads the model.

        Args:
          index: that was encoded by it.
          path_or_name: of the model; None: the run whose workdir the index lies in, or else what its manifest names.

        Raises:
          EndxError: there is no such model, or it is another than the index was encoded by; the message names both.
        """
        self.model: EmbeddingModel = load(path_or_name or _home(index) or _named(index))
        index.check_model(self.model.name, self.model.identity)
        self._width = index.manifest.width

    def encode_query(self, texts: list[str]) -> np.ndarray:
        """Questions to float32 [Q, E]."""
        return self._encode(self.model.encode_query, texts)

    def encode_document(self, texts: list[str]) -> np.ndarray:
        """Documents to float32 [N, E]."""
        return self._encode(self.model.encode_document, texts)

    def _encode(self, encode: Callable, texts: list[str]) -> np.ndarray:
        return encode(texts, truncate_dim=self._width, normalize_embeddings=self.model.cosine)


def _home(index: Index) -> pathlib.Path | None:
    """Returns the workdir around the index, wherever it was moved to."""
    places = index.folder.absolute().parents
    return next((place for place in places if (place / MODEL / ABOUT).is_file()), None)


def _named(index: Index) -> str:
    name = index.manifest.model.get("name")
    if not name:
        raise EndxError(f"{index.folder} does not say which model encoded it: name it with --model or --workdir")
    return name
