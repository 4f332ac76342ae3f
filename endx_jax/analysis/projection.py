"""Embeddings on paper: two numbers a row."""

import numpy as np
import numpy.typing as npt

from endx_jax.numerics import unit_rows


def tsne(rows: np.ndarray, *, perplexity: float, seed: int) -> np.ndarray:
    """t-SNE (Van der Maaten and Hinton 2008) from a start by principal components.

    Args:
      rows: [N, E]; distances are Euclidean, which of unit vectors order as cosines do.
      perplexity: how many neighbours count, roughly; cut to (N - 1) / 3, more than which leaves nothing apart.
      seed: of what is still drawn.

    Returns:
      float64 [N, 2], centred and with the farthest coordinate at 1: neither scale nor direction means anything.
    """
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    perplexity = min(perplexity, (len(rows) - 1) / 3)
    made = TSNE(2, perplexity=perplexity, init="pca", learning_rate="auto", random_state=seed, n_jobs=1)
    # One thread: threads that wait for each other a thousand times over are very slow on a busy machine, and their
    # number would show in the last digits.
    with threadpool_limits(1):
        places = made.fit_transform(np.asarray(rows, np.float64))
    places = places - (places.max(axis=0) + places.min(axis=0)) / 2
    return places / (np.abs(places).max() or 1.0)


def svd(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first two components of the singular value decomposition of unit rows, not centred.

    Signs are chosen so that the mean of each component is not negative.

    Args:
      rows: [N, E], N and E at least 2.

    Returns:
      float64 [N, 2], the rows' coordinates; and float64 [2], the share of the sum of squares in each component.
    """
    left, values, _ = np.linalg.svd(unit_rows(np.asarray(rows, np.float64)), full_matrices=False)
    places = left[:, :2] * values[:2]
    places = places * np.where(places.mean(axis=0) < 0, -1.0, 1.0)
    return places, values[:2] ** 2 / np.sum(values**2)


def rounded(values: npt.ArrayLike, digits: int = 4) -> list:
    """Nested lists of numbers, as JSON holds them, to so many digits after the point."""
    return np.round(np.asarray(values, np.float64), digits).tolist()
