"""Inverse document frequencies of tokens (RR, section 3.1): IDF(t) = ln(documents / documents with t)."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from endx_jax.data.tokenization import Preparation, TokenTable


def inverse_document_frequencies(tables: Sequence[TokenTable], vocab_size: int) -> np.ndarray:
    """IDFs over the texts of all tables, each of which is a document.

    A token of every document, as special tokens are, has 0. One of no document counts as if it were in one, so that
    it weighs as much as the rarest that were seen.

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
    texts: Mapping[str, Sequence[str]], preparations: Mapping[str, Preparation], vocab_sizes: Mapping[str, int]
) -> dict[str, np.ndarray]:
    """IDFs over all texts of both sides, for each side in its own vocabulary.

    Args:
      texts: by side, `question` and `answer`.
      preparations: how the texts of each side become tokens.
      vocab_sizes: V of each side.

    Returns:
      By side, float32 [V].
    """
    found = {}
    for side, preparation in preparations.items():
        both = [dataclasses.replace(preparations[of], tokenizer=preparation.tokenizer)(texts[of]) for of in texts]
        found[side] = inverse_document_frequencies(both, vocab_sizes[side])
    return found
