import numpy as np
import pytest

from reproduction.figures.figure import svd, tsne


def test_svd_keeps_inner_products_of_rows_in_a_plane():
    angles = np.radians([10, 30, 80])
    rows = np.stack([np.cos(angles), np.sin(angles), 0 * angles], axis=1) * [[2.0], [1.0], [5.0]]
    places, shares = svd(rows)
    np.testing.assert_allclose(places @ places.T, np.cos(angles[:, None] - angles), atol=1e-12)
    assert shares.sum() == pytest.approx(1)
    assert shares[0] > shares[1]
    assert (places.mean(axis=0) >= 0).all()


def test_tsne_keeps_two_clusters_apart_and_is_the_same_again():
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.normal(size=(15, 5)), 20 + rng.normal(size=(15, 5))])
    places = tsne(rows, perplexity=30)
    assert places.shape == (30, 2)
    assert np.abs(places).max() == pytest.approx(1)
    between = np.linalg.norm(places[:15].mean(0) - places[15:].mean(0))
    within = max(np.linalg.norm(part - part.mean(0), axis=1).max() for part in (places[:15], places[15:]))
    assert between > within
    np.testing.assert_array_equal(places, tsne(rows, perplexity=30))
