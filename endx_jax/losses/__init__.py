"""Losses: pure functions of arrays that return (loss, metrics)."""

from endx_jax.losses.arguments import Ceiling, Guide, Options, Prefixes
from endx_jax.losses.distillation import listwise_kl, margin_mse
from endx_jax.losses.false_negatives import false_negative_mask, is_negative, pair_ids
from endx_jax.losses.geometry import embedding_regression, geometry_alignment
from endx_jax.losses.matching import sampled_matching
from endx_jax.losses.pairs import pair_binary, pair_softmax
from endx_jax.losses.rows import dot, log_sum_exp, mean_over_rows
from endx_jax.losses.shard import all_gather, batch_mean
from endx_jax.losses.sigmoid import in_batch_sigmoid
from endx_jax.losses.softmax import in_batch_softmax
from endx_jax.losses.triplets import quadratic_regression_conditional, triplet
from endx_jax.losses.variational import free_bits, gaussian_kl
from endx_jax.losses.vocabulary import vocabulary_nll

__all__ = [
    "Ceiling",
    "Guide",
    "Options",
    "Prefixes",
    "all_gather",
    "batch_mean",
    "dot",
    "embedding_regression",
    "false_negative_mask",
    "free_bits",
    "gaussian_kl",
    "geometry_alignment",
    "in_batch_sigmoid",
    "in_batch_softmax",
    "is_negative",
    "listwise_kl",
    "log_sum_exp",
    "margin_mse",
    "mean_over_rows",
    "pair_binary",
    "pair_ids",
    "pair_softmax",
    "quadratic_regression_conditional",
    "sampled_matching",
    "triplet",
    "vocabulary_nll",
]
__dir__ = __all__.copy  # for tab completion
