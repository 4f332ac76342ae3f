"""`endx_jax.open_index`: opens an index with the model that encoded it."""

import contextvars
import dataclasses
import os
import pathlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

from endx_jax.buckets import NOT_OF_MODEL, local_copy, url_of
from endx_jax.data.languages import ENGLISH
from endx_jax.errors import EndxError
from endx_jax.files import expanded
from endx_jax.index.approximate import EXACT
from endx_jax.index.index import Index
from endx_jax.index.index_file import COSINE, FILE
from endx_jax.inference import EmbeddingModel, load
from endx_jax.inference.manifest import MANIFEST, MODEL, model_folder, read_manifest
from endx_jax.ranking.bm25 import BM25
from endx_jax.ranking.hybrid import SCALE, Hybrid, default_hybrid
from endx_jax.settings import from_mapping


def open_index(
    path: str | os.PathLike,
    model: EmbeddingModel | str | os.PathLike | None = None,
    *,
    engine: str = EXACT,
    weight: float | None = None,
) -> Index:
    """Opens an index with its model, to search it by text and to change its documents.

    Embeddings and words are mapped from caches beside the file, which the first opening makes. The model is loaded at
    the first search or addition that needs it.

    Args:
      path: file of an index, as `endx encode` writes it, local or in a bucket; or a local workdir of a run, whose index
        is opened.
      model: the model, or its path or name; or one that learned its embeddings and can search only. None: the run
        whose workdir contains the index, else the model that the index names.
      engine: search of embeddings: `exact`, or by faiss `flat`, `ivf` or `hnsw`.
      weight: weight of BM25 beside the dense score in mode `hybrid`; None: the model's, or the default.

    Raises:
      EndxError: there is no index, it is damaged, or an argument is not one of these. The first search raises one if
        the model does not exist, or is not the one that encoded the index; the message names both.

    Examples:
      >>> from endx_jax.data.sets.documents import Document
      >>> from endx_jax.index.index import write_index
      >>> model, texts = endx_jax.load("all-MiniLM-L6-v2"), ["smtplib sends e-mail.", "numpy.reshape changes shapes."]
      >>> documents = [Document("mail", texts[0]), Document("shape", texts[1], {"library": "numpy"})]
      >>> about = {"metric": "cosine", "model": model.description}
      >>> write_index(pathlib.Path("faq.sqlite"), model.encode_document(texts), documents, **about)
      >>> index = endx_jax.open_index("faq.sqlite")
      >>> index.search("How do I send an email?", k=1)[0].document.text
      'smtplib sends e-mail.'
      >>> [found.document.id for found in index.search("sending mail", where={"library": "numpy"})]
      ['shape']
    """
    given = None if weight is None else Hybrid(weight)  # refuses some weights, before all else
    folder = expanded(path)
    index = Index(folder / FILE if (folder / FILE).is_file() else path, engine=engine)
    index.encoder = IndexModel(index, model)
    hybrid = stored_hybrid(
        index.encoder.source, cosine=index.snapshot.info.metric == COSINE, language=index.snapshot.info.language
    )
    index.hybrid = dataclasses.replace(given, known=hybrid.known) if given else hybrid
    return index


class IndexModel:
    """Encoder of questions and documents for an index, with its embedding width and normalization.

    Attributes:
      source: path or name of the model; empty if the index does not name it.
    """

    def __init__(self, index: Index, model: EmbeddingModel | str | os.PathLike | None = None):
        """Stores an index and its model, given as to `open_index`; the model is loaded and checked on first use."""
        self._given: EmbeddingModel | None = None
        if isinstance(model, EmbeddingModel):
            self._given, model = model, model.name
        self.source = model or _home(index) or index.snapshot.info.model.get("name", "")
        self._index, self._lock = index, threading.Lock()
        # The first use may be in another thread, or after the data type of products was set anew.
        self._context = contextvars.copy_context()
        self._loaded: EmbeddingModel | None = None

    @property
    def model(self) -> EmbeddingModel:
        """The model.

        Raises:
          EndxError: it does not exist, or is neither the one that encoded the index nor learned its embeddings.
        """
        with self._lock:
            if self._loaded is None:
                if not self.source:
                    raise EndxError(f"{self._index.path} does not name its model: set model=PATH_OR_NAME")
                model = self._given or self._context.run(load, self.source)
                check_model(self._index, model, to_search=True)
                self._loaded = model
            return self._loaded

    def encode_query(self, texts: Sequence[str]) -> Any:
        """Encodes Q questions; returns float32 [Q, E], or token vectors."""
        return self.encode("question", texts)

    def encode_document(self, texts: Sequence[str]) -> Any:
        """Encodes N documents to add; returns float32 [N, E], or token vectors.

        Raises:
          EndxError: the model is not the one that encoded the index.
        """
        check_model(self._index, self.model)
        return self.encode("answer", texts)

    def encode(self, side: str, texts: Sequence[str]) -> Any:
        """Encodes texts of a side, `question` or `answer`; returns float32 [N, E], or token vectors."""
        encode: Callable = self.model.encode_query if side == "question" else self.model.encode_document
        width, cosine = self._index.snapshot.info.width, self.model.cosine
        options = {} if side == "question" or not self.model.by_token else {"pool_factor": pool_factor_of(self._index)}
        return encode(list(texts), truncate_dim=width, normalize_embeddings=cosine, **options)


def pool_factor_of(index: Index) -> float:
    """Returns the factor by which the token vectors of an index are pooled."""
    return index.snapshot.info.model.get("pool_factor", 1)


def check_model(index: Index, model: EmbeddingModel, *, to_search: bool = False) -> None:
    """Raises EndxError unless a model encoded an index, or, `to_search` it, learned its embeddings; names both."""
    encoded = index.snapshot.info.model
    if encoded.get("identity") not in (model.identity, (to_search and model.teacher) or model.identity):
        raise EndxError(
            f"{index.path} was encoded by {encoded.get('name')} (identity {str(encoded.get('identity'))[:12]}), not "
            f"by {model.name} ({model.identity[:12]}): use the former, or encode the documents again"
        )


def stored_hybrid(path_or_name: str | os.PathLike, *, cosine: bool, language: str = ENGLISH) -> Hybrid:
    """Returns the fusion in a model's folder, without loading the model.

    The default is returned if none was fitted with BM25 for `language`, the language of the documents.
    """
    folder = model_folder(local_copy(path_or_name, skip=NOT_OF_MODEL))
    default = default_hybrid(cosine=cosine)
    stored = read_manifest(folder).hybrid if folder else None
    if stored is None:
        return default
    hybrid = from_mapping(Hybrid, {"known": default.known, **stored}, f"{folder}/{MANIFEST}: 'hybrid'")
    return hybrid if hybrid.bm25 == f"{BM25.description(language)}{SCALE}" else default


def _home(index: Index) -> pathlib.Path | None:
    """Returns the local workdir that contains the index, or None."""
    if url_of(index.source):  # beside its copy there may be an old copy of the run's model
        return None
    places = index.path.absolute().parents
    return next((place for place in places if (place / MODEL / MANIFEST).is_file()), None)
