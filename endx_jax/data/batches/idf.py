"""Inverse document frequencies of tokens (RR, section 3.1): IDF(t) = ln(documents / documents with t)."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from endx_jax.data.batches.token_tables import TokenTable
from endx_jax.data.tokenization import TextProcessor


def inverse_document_frequencies(tables: Sequence[TokenTable], vocab_size: int) -> np.ndarray:
    """Returns IDFs with the texts of all tables as documents.

    Tokens in every document, such as special tokens, have IDF 0. Tokens in no document get the IDF of tokens in one.

    Args:
      tables: tokens of the documents, in one vocabulary.
      vocab_size: V.

    Returns:
      float32 [V].
    """
    frequencies, documents = np.zeros(vocab_size, np.int64), 0
    for table in tables:
        count = len(table.lengths)
        owners = np.repeat(np.arange(count, dtype=np.int64), table.lengths)
        distinct = np.unique(owners * vocab_size + table.ids)
        frequencies += np.bincount(distinct % vocab_size, minlength=vocab_size)
        documents += count
    return np.log(documents / np.maximum(frequencies, 1)).astype(np.float32)


def idf_of_sides(
    texts: Mapping[str, Sequence[str]], processors: Mapping[str, TextProcessor], vocab_sizes: Mapping[str, int]
) -> dict[str, np.ndarray]:
    """Returns IDFs over the texts of both sides, in the vocabulary of each side.

    Args:
      texts: texts by side, `question` and `answer`.
      processors: text processor of each side.
      vocab_sizes: V of each side.

    Returns:
      float32 [V] by side.
    """
    by_side = {}
    for side, processor in processors.items():
        both = [dataclasses.replace(processors[of], tokenizer=processor.tokenizer)(texts[of]) for of in texts]
        by_side[side] = inverse_document_frequencies(both, vocab_sizes[side])
    return by_side
