"""Lookup, loading and check of the model that encoded an index, and its fusion with BM25."""

import os
import pathlib
from collections.abc import Callable, Sequence

import numpy as np

from endx_jax.buckets import local_copy
from endx_jax.data.languages import ENGLISH
from endx_jax.errors import EndxError
from endx_jax.index.index import Index
from endx_jax.index.index_file import COSINE
from endx_jax.inference import EmbeddingModel, load
from endx_jax.inference.manifest import MANIFEST, MODEL, model_folder, read_manifest
from endx_jax.ranking.bm25 import BM25
from endx_jax.ranking.hybrid import Hybrid, default_hybrid
from endx_jax.settings import from_mapping


class IndexModel:
    """Encoder of questions and documents for an index, with its embedding width and normalization.

    Attributes:
      model: the loaded model.
    """

    def __init__(self, index: Index, path_or_name: str | os.PathLike | None = None):
        """Loads the model.

        Args:
          index: index that was encoded by the model.
          path_or_name: path or name of the model, or of one that learned its embeddings and can search only. None means
            the run whose workdir contains the index, else the model that the index names.

        Raises:
          EndxError: the model does not exist, or is neither the one that encoded the index nor learned its embeddings;
            the message names both.
        """
        self.model: EmbeddingModel = load(path_or_name or _home(index) or _named(index))
        index.check_model(self.model.name, self.model.identity, self.model.teacher)
        self._index, self._width = index, index.info.width

    def encode_query(self, texts: list[str]) -> np.ndarray:
        """Encodes Q questions; returns float32 [Q, E], or token vectors, objects [Q]."""
        return self.encode("question", texts)

    def encode_document(self, texts: list[str]) -> np.ndarray:
        """Encodes N documents to add; returns float32 [N, E], or token vectors, objects [N].

        Raises:
          EndxError: the model is not the one that encoded the index.
        """
        self._index.check_model(self.model.name, self.model.identity)
        return self.encode("answer", texts)

    def encode(self, side: str, texts: Sequence[str]) -> np.ndarray:
        """Encodes texts of a side, `question` or `answer`; returns float32 [N, E], or token vectors, objects [N]."""
        encode: Callable = self.model.encode_query if side == "question" else self.model.encode_document
        encoded = encode(list(texts), truncate_dim=self._width, normalize_embeddings=self.model.cosine)
        return np.fromiter(encoded, object, len(encoded)) if self.model.by_token else encoded


def stored_hybrid(path_or_name: str | os.PathLike, *, cosine: bool, language: str = ENGLISH) -> Hybrid:
    """Returns the fusion in a model's folder, without loading the model.

    The default is returned if none was fitted with BM25 for `language`, the language of the documents.
    """
    folder = model_folder(local_copy(path_or_name, skip=("checkpoints", "*.sqlite")))
    default = default_hybrid(cosine=cosine)
    stored = read_manifest(folder).hybrid if folder else None
    if stored is None:
        return default
    hybrid = from_mapping(Hybrid, {"known": default.known, **stored}, f"{folder}/{MANIFEST}: 'hybrid'")
    return hybrid if hybrid.bm25 == BM25.description(language) else default


def hybrid_of(index: Index, path_or_name: str | os.PathLike | None = None) -> Hybrid:
    """Returns the fusion of the model that encoded an index, without loading it; arguments as in `IndexModel`."""
    source = path_or_name or _home(index) or index.info.model.get("name", "")
    return stored_hybrid(source, cosine=index.info.metric == COSINE, language=index.info.language)


def _home(index: Index) -> pathlib.Path | None:
    """Returns the workdir that contains the index, or None."""
    places = index.path.absolute().parents
    return next((place for place in places if (place / MODEL / MANIFEST).is_file()), None)


def _named(index: Index) -> str:
    name = index.info.model.get("name")
    if not name:
        raise EndxError(f"{index.path} does not name its model: set path_or_name")
    return name
