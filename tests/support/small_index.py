"""Small indexes, with embeddings drawn by their texts in place of a model's."""

import zlib

import numpy as np

from endx_jax.data.sets.documents import Document
from endx_jax.index.index import Index, write_index
from endx_jax.index.index_file import INNER_PRODUCT
from endx_jax.numerics import unit_rows

MODEL = {"name": "m", "identity": "1" * 64}
EMBEDDINGS = np.arange(1, 7, dtype=np.float32).reshape(3, 2)
DOCUMENTS = [Document("d0", "eins"), Document("d1", "zwei\nZeilen", {"source": "≠", "year": 3}), Document("d2", "")]


def make_index(
    path, embeddings=EMBEDDINGS, documents=DOCUMENTS, *, metric=INNER_PRODUCT, model=MODEL, **about
) -> Index:
    """Writes an index and opens it."""
    write_index(path, embeddings, documents, metric=metric, model=model, **about)
    return Index(path)


def embed(texts, width: int = 8) -> np.ndarray:
    """A random unit vector for each text, the same for equal texts."""
    draws = [np.random.default_rng(zlib.crc32(text.encode())).normal(size=width) for text in texts]
    return unit_rows(np.float32(draws).reshape(-1, width))


def embed_known(documents, width: int = 8) -> np.ndarray:
    """The embeddings of all known questions of documents."""
    return embed([question for document in documents for question in document.questions], width)
