"""Arrays and numbers that metrics refuse: the call, and what its line names."""

import numpy as np
import pytest
from refusals import check_refusal

from endx_jax import metrics
from endx_jax.metrics.significance import bootstrap_interval, mean_over_sets, paired_difference

RANKS = np.array([[1, 3, 12]], np.float32)
ZERO, ONE, NONE = np.zeros((3, 1)), np.ones((3, 1)), np.zeros((0, 1))


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: metrics.ranks(np.zeros((8, 5), np.float32), np.zeros((4, 1), np.int32)), ["positives", "(4, 1)", "8"]),
        (lambda: metrics.ranks(np.zeros(5, np.float32), np.zeros((1, 1), np.int32)), ["scores", "(5,)", "[B, N]"]),
        (lambda: metrics.reciprocal_rank(RANKS, 0), ["cutoff is 0"]),
        (lambda: metrics.recall_at(RANKS, 0), ["cutoff is 0"]),
        (lambda: metrics.hit_at(RANKS, 0), ["cutoff is 0"]),
        (lambda: metrics.ndcg_at(RANKS, 0), ["cutoff is 0"]),
        (lambda: paired_difference(ZERO, ONE, draws=0), ["0 draws"]),
        (lambda: paired_difference(ZERO, ONE, confidence=0), ["confidence is 0"]),
        (lambda: paired_difference(NONE, NONE), ["0 questions"]),
        (lambda: bootstrap_interval(np.zeros(3)), ["[Q, M]", "(3,)"]),
        (lambda: paired_difference(np.zeros((1, 1)), np.ones((20, 1))), ["(1, 1)", "(20, 1)"]),
        *(
            (lambda sizes=sizes: mean_over_sets(ZERO, sizes), ["sizes", "3 questions"])
            for sizes in ([2], [2, 2], [3, 0])
        ),
        (lambda: paired_difference(ZERO, ZERO, clusters=np.array(["a", "b"])), ["2 clusters", "3 questions"]),
    ],
)
def test_arrays_that_do_not_agree_and_numbers_out_of_bounds_are_named(call, named):
    check_refusal(call, *named)
