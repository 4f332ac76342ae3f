"""Bootstrap intervals and paired tests over questions."""

import dataclasses
import math
import statistics
from collections.abc import Sequence

import numpy as np

from endx_jax.errors import EndxError
from endx_jax.json_files import shown

BLOCK = 2**20  # maximum count of random numbers in a block of draws, which bounds memory
DRAWS, CONFIDENCE = 10_000, 0.95  # of intervals and randomisation tests
FEWEST = 30  # number of questions below which reports give no intervals and no p-values


@dataclasses.dataclass(frozen=True)
class Difference:
    """Difference of two systems (second minus first) on the same questions.

    Attributes:
      mean: mean difference over questions.
      low: lower end of the bootstrap confidence interval.
      high: upper end of the bootstrap confidence interval.
      p: two-sided p-value of the randomisation test.
    """

    mean: float
    low: float
    high: float
    p: float


def mean_over_sets(values: np.ndarray, sizes: Sequence[int] = ()) -> np.ndarray:
    """Returns the mean over data sets of their means over questions, [M].

    Args:
      values: [Q, M], M metrics on the questions of all sets, one set after the other.
      sizes: numbers of questions of the sets; empty for a single set.
    """
    return np.mean([part.mean(axis=0, dtype=np.float64) for part in _split(values, sizes)], axis=0)


def bootstrap_interval(
    values: np.ndarray,
    *,
    sizes: Sequence[int] = (),
    draws: int = DRAWS,
    confidence: float = CONFIDENCE,
    seed: int = 0,
) -> np.ndarray:
    """Returns the lower and the upper ends [2, M] of bootstrap intervals of `mean_over_sets`.

    The questions are resampled within each set. The sets are not: the interval is for other questions of the same sets.
    Arguments are those of `mean_over_sets` and `paired_difference`.
    """
    resampled = bootstrap_means(values, np.random.default_rng(seed), sizes=sizes, draws=draws)
    return _middle(resampled, confidence)


def paired_difference(
    first: np.ndarray,
    second: np.ndarray,
    *,
    sizes: Sequence[int] = (),
    clusters: Sequence[str] = (),
    draws: int = DRAWS,
    confidence: float = CONFIDENCE,
    seed: int = 0,
) -> list[Difference]:
    """Compares two systems on the same questions by a paired bootstrap interval and a paired randomisation test.

    The interval holds the middle `confidence` of the mean differences of `draws` resamples of the questions with
    replacement. The randomisation test assigns each question's two values to the systems at random, `draws` times; p is
    (1 + e) / (1 + draws), where e counts the assignments whose mean difference is at least as far from zero (Smucker et
    al. 2007, sections 2.2 and 2.4). All metrics use the same draws. With several data sets, the mean is
    `mean_over_sets`, and the questions are resampled within each set.

    Questions of one article are not independent, so that intervals over questions are too narrow. With `clusters`,
    whole clusters of questions are resampled and swapped.

    Args:
      first: [Q, M], M metrics of the first system on each question.
      second: [Q, M], metrics of the second system.
      sizes: numbers of questions of the data sets, one set after the other; empty for a single set.
      clusters: cluster of each question, such as its article; empty if every question is independent.
      draws: number of resamples, and of random assignments.
      confidence: confidence level of the interval, in (0, 1).
      seed: random seed.

    Returns:
      One `Difference` per metric.
    """
    if np.shape(first) != np.shape(second):
        raise EndxError(f"two systems need values of one shape [Q, M], not {np.shape(first)} and {np.shape(second)}")
    difference = np.asarray(second, np.float64) - np.asarray(first, np.float64)
    generator = np.random.default_rng(seed)
    resampled = bootstrap_means(difference, generator, sizes=sizes, clusters=clusters, draws=draws)
    low, high = _middle(resampled, confidence)
    parts = _cluster_sums(difference, sizes, clusters)
    swapped = _means(parts, draws, lambda size: 1 - 2.0 * generator.integers(2, size=size, dtype=np.int8))
    mean = mean_over_sets(difference, sizes)
    # A sum in another order may differ in its last digits.
    extreme = (np.abs(swapped) >= np.abs(mean) - 1e-12).sum(axis=0)
    p = (1 + extreme) / (1 + draws)
    return [Difference(*map(float, row)) for row in zip(mean, low, high, p, strict=True)]


def questions_needed(deviation: float, gain: float, *, power: float = 0.8, confidence: float = CONFIDENCE) -> int:
    """Returns the number of questions with which the interval of a true gain is above zero with probability `power`.

    The interval is that of `paired_difference`, whose width for n independent questions is that of a normal
    distribution with standard deviation `deviation` / sqrt(n).

    Args:
      deviation: standard deviation over questions of the difference of two systems.
      gain: true mean difference, above 0.
      power: probability of seeing it, in (0, 1).
      confidence: confidence level of the interval, in (0, 1).
    """
    normal = statistics.NormalDist()
    quantiles = normal.inv_cdf((1 + confidence) / 2) + normal.inv_cdf(power)
    return math.ceil((quantiles * deviation / gain) ** 2)


def bootstrap_means(
    values: np.ndarray,
    generator: np.random.Generator,
    *,
    sizes: Sequence[int] = (),
    clusters: Sequence[str] = (),
    draws: int = DRAWS,
) -> np.ndarray:
    """Returns `mean_over_sets` of resamples of the questions with replacement, within each set, float64 [draws, M].

    The draws are those of `generator`; the other arguments are those of `mean_over_sets` and `paired_difference`.
    """
    if np.ndim(values) != 2:
        raise EndxError(f"values must be [Q, M], M metrics on Q questions, not of shape {np.shape(values)}")
    questions = len(values)
    if len(clusters) not in (0, questions):
        raise EndxError(f"there are {len(clusters)} clusters for {questions} questions: give one for each")
    if questions == 0 or draws < 1:
        raise EndxError(f"a bootstrap needs questions and draws: there are {questions} questions and {draws} draws")
    parts = _cluster_sums(np.asarray(values, np.float64), sizes, clusters)
    return _means(parts, draws, lambda size: _counts(generator, size))


def _middle(means: np.ndarray, confidence: float) -> np.ndarray:
    """Returns the ends [2, M] of the interval that holds the middle `confidence` of means [draws, M]."""
    if not 0 < confidence < 1:
        raise EndxError(f"confidence is {confidence}; it must be in (0, 1)")
    tail = (1 - confidence) / 2
    return np.quantile(means, [tail, 1 - tail], axis=0)


def _split(values: np.ndarray, sizes: Sequence[int]) -> list[np.ndarray]:
    """Returns the rows of each data set; raises EndxError unless the sizes are those of sets of questions."""
    if not len(sizes):
        return [values]
    if min(sizes) < 1 or sum(sizes) != len(values):
        raise EndxError(f"sizes is {shown(sizes)} for {len(values)} questions: give the number of each set, from 1")
    return np.split(values, np.cumsum(sizes)[:-1])


def _cluster_sums(
    values: np.ndarray, sizes: Sequence[int], clusters: Sequence[str]
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns for each data set the sums of its C clusters [C, M] and their numbers of questions [C]."""
    if not len(clusters):
        return [(part, np.ones(len(part))) for part in _split(values, sizes)]
    parts = []
    for part, names in zip(_split(values, sizes), _split(np.asarray(clusters), sizes), strict=True):
        _, cluster, counts = np.unique(names, return_inverse=True, return_counts=True)
        sums = np.zeros((len(counts), part.shape[1]))
        np.add.at(sums, cluster, part)
        parts.append((sums, counts.astype(np.float64)))
    return parts


def _means(parts, draws: int, weights) -> np.ndarray:
    """Returns weighted means over questions, averaged over sets [draws, M]; `weights` draws the weights of a block."""
    means = []
    for sums, counts in parts:
        block = max(1, BLOCK // len(sums))
        blocks = []
        for start in range(0, draws, block):
            drawn = weights((min(block, draws - start), len(sums)))
            blocks.append(drawn @ sums / (np.abs(drawn) @ counts)[:, None])
        means.append(np.concatenate(blocks))
    return np.mean(means, axis=0)


def _counts(generator: np.random.Generator, size: tuple[int, int]) -> np.ndarray:
    """Draws bootstrap counts, float64 [draws, C]: the occurrences of each cluster in C draws with replacement."""
    draws, count = size
    places = generator.integers(count, size=size) + count * np.arange(draws)[:, None]
    return np.bincount(places.ravel(), minlength=draws * count).reshape(size).astype(np.float64)
