"""Rerankers that other libraries wrote, read as scorers of pairs."""

import pathlib

from endx_jax.methods.pair.cross_encoder import load_cross_encoder
from endx_jax.methods.pair.reranker import load_reranker
from endx_jax.ranking.rerank import PairScorerFactory


def load_foreign_scorer(folder: pathlib.Path) -> PairScorerFactory | None:
    """Loads a cross-encoder or a language model that re-ranks; None if the folder holds neither.

    Raises:
      EndxError: the folder holds one that is not supported, or a file is missing or damaged.
    """
    return load_cross_encoder(folder) or load_reranker(folder)
