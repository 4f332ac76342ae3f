"""Layers of token vectors that were computed elsewhere, such as AllenNLP's of ELMo, pooled as a model's are."""

import itertools
import math
import pathlib
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from endx_jax.data.records import RetrievalSet
from endx_jax.files import write_text
from endx_jax.pretrained.static import split_words
from endx_jax.pretrained.token_vectors import read_token_vectors
from endx_jax.retrieval.layers import PooledLayers


def write_texts(path: pathlib.Path, sets: Mapping[str, RetrievalSet]) -> int:
    """Writes the texts of which such a file is to be made: one a line, of each set its questions and then its pool.

    Tokens are words and punctuation marks with spaces between them, which AllenNLP's `elmo` command takes as they are.

    Returns:
      How many texts there are.
    """
    lines = [" ".join(words) for words in _words(sets)]
    write_text(path, "".join(f"{line}\n" for line in lines))
    return len(lines)


def pool_file(path: pathlib.Path, sets: Mapping[str, RetrievalSet]) -> tuple[tuple[str, ...], dict[str, PooledLayers]]:
    """Pools the token vectors in a file, without and with the IDFs of each set's own words.

    Args:
      path: as `pretrained.token_vectors` reads it, made of what `write_texts` wrote for these sets.
      sets: by name.

    Returns:
      The layers' names, and the pooled layers of each set.

    Raises:
      EndxError: when the file can't be read, or was made of other texts.
    """
    texts = _words(sets)
    vectors = zip(texts, read_token_vectors(path, [len(words) for words in texts]), strict=True)
    pooled = {}
    for part, records in sets.items():
        counts = len(records.questions), len(records.candidates)
        own = [*itertools.islice(vectors, sum(counts))]
        idf = _idf([words for words, _ in own])
        means = np.stack([_means(layers, [idf[word] for word in words]) for words, layers in own])
        pooled[part] = PooledLayers(means[: counts[0]], means[counts[0] :], records.qrels)
    layers = means.shape[2]
    return tuple(f"layer {n}" for n in range(layers)), pooled


def _words(sets: Mapping[str, RetrievalSet]) -> list[list[str]]:
    return [split_words(text) for records in sets.values() for text in (*records.questions, *records.candidates)]


def _idf(documents: Sequence[Sequence[str]]) -> dict[str, float]:
    frequencies = Counter(word for words in documents for word in set(words))
    return {word: math.log(len(documents) / count) for word, count in frequencies.items()}


def _means(layers: np.ndarray, weights: Sequence[float]) -> np.ndarray:
    """Layers [K, T, W] to the means of their plain and of their weighted vectors, [2, K, W]."""
    both = np.stack([np.ones(len(weights), np.float32), np.array(weights, np.float32)])
    return np.einsum("st,ktw->skw", both, layers) / max(len(weights), 1)
