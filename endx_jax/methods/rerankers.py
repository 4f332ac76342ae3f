"""Rerankers that other libraries wrote, read as scorers of pairs."""

import pathlib

from endx_jax.errors import EndxError
from endx_jax.methods.pair.cross_encoder import CLASSIFIERS, load_cross_encoder
from endx_jax.methods.pair.reranker import KINDS, load_reranker
from endx_jax.pretrained.sentence_transformers import scores_pairs
from endx_jax.ranking.rerank import PairScorerFactory


def load_foreign_scorer(folder: pathlib.Path) -> PairScorerFactory | None:
    """Loads a cross-encoder or a language model that re-ranks; None if the folder holds neither.

    Raises:
      EndxError: the folder holds one that is not supported, or a file is missing or damaged.
    """
    scorer = load_cross_encoder(folder) or load_reranker(folder)
    if scorer is None and scores_pairs(folder):
        raise EndxError(
            f"{folder} holds a reranker of a kind that is not supported; supported are "
            f"{', '.join(form.kind for form in CLASSIFIERS.values())}, and {', '.join(KINDS)} with a LogitScore"
        )
    return scorer
