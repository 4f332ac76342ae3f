import pytest

from endx_jax.retrieval.fusion import reciprocal_ranks, weighted_scores

FIRST = [(7, 30.0), (3, 20.0), (5, 10.0)]
SECOND = [(3, 0.9), (9, 0.5)]


def test_reciprocal_ranks_are_summed():
    found = reciprocal_ranks([FIRST, SECOND])
    assert found == [
        (3, pytest.approx(1 / 62 + 1 / 61)),
        (7, pytest.approx(1 / 61)),
        (9, pytest.approx(1 / 62)),
        (5, pytest.approx(1 / 63)),
    ]


def test_a_small_k_lets_first_places_stand_out():
    # Two second places beat one first where k is large, 2 / 62 > 1 / 61, and no more at k = 0: 2 / 2 = 1 / 1.
    rankings = [[(1, 0), (2, 0)], [(3, 0), (2, 0)]]
    assert reciprocal_ranks(rankings)[0][0] == 2
    assert reciprocal_ranks(rankings, k=0) == [(1, 1.0), (2, 1.0), (3, 1.0)]


def test_weighted_scores_are_of_one_scale():
    # 30, 20 and 10 become 1, 0.5 and 0; 0.9 and 0.5 become 1 and 0.
    assert weighted_scores([FIRST, SECOND], (0.75, 0.25)) == [
        (7, 0.75 * 1),
        (3, 0.75 * 0.5 + 0.25 * 1),
        (5, 0.0),
        (9, 0.0),
    ]


def test_the_weights_are_those_of_the_rankings():
    assert [item for item, _ in weighted_scores([FIRST, SECOND], (0, 1))][:1] == [3]
    assert [item for item, _ in weighted_scores([FIRST, SECOND], (1, 0))][:2] == [7, 3]


@pytest.mark.parametrize("ranking", [[(4, 2.0)], [(4, 2.0), (6, 2.0)]])
def test_equal_scores_are_all_the_best(ranking):
    assert weighted_scores([ranking, []], (0.5, 0.5)) == [(item, 0.5) for item, _ in ranking]


def test_of_equal_ones_the_first_ranking_comes_first():
    assert [item for item, _ in reciprocal_ranks([[(8, 1)], [(2, 1)]])] == [8, 2]


def test_nothing_is_found_in_nothing():
    assert reciprocal_ranks([[], []]) == weighted_scores([[], []], (0.5, 0.5)) == []
