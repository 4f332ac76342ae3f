"""Separation of question and answer embeddings, and distances between the questions of one answer."""

from collections.abc import Sequence

import numpy as np

from endx_jax.data.sets.records import questions_by_candidate
from endx_jax.errors import EndxError
from endx_jax.numerics import unit_rows

SMALLEST = 4
RIDGE = 0.03


def probe_accuracy(question_embeddings, answer_embeddings, *, seed: int = 0, limit: int = 5000) -> float:
    """Returns the held-out accuracy of a linear probe that separates question from answer embeddings.

    It is 0.5 if the two distributions coincide and 1.0 if a hyperplane separates them. It quantifies Figure 2 of Dong
    et al. (2022), a t-SNE plot, but is more sensitive: questions differ from answers in form, so a siamese model may
    reach well above 0.5 although a plot shows them mixed (all-MiniLM-L6-v2 on SQuAD: 0.95). Compare models on the same
    examples at the same width.

    Draw: equally many of both kinds, at random. Two-fold cross-validation: each half fits a probe that is measured on
    the other, and the two accuracies are averaged. With n of each kind drawn, the standard error is below 0.5 /
    sqrt(n), 0.007 at 5,000.

    Pairs: an answer whose question is in the fitting half is classified more often as a question, which lowers the
    accuracy, below 0.5 if the distributions coincide (to 0.42 for 2,500 pairs of cosine 0.6 that are all split). With
    as many questions as answers, row i of both therefore falls in the same half: pass pairs in the same rows, no answer
    twice. With unequal numbers pairs are unknown and some are split: for SQuAD's ReQA set 0.5 is measured as about
    0.48.

    Probe: logistic regression, the minimum of mean log(1 + exp(-y (w x + b))) + RIDGE / 2 |w|^2, y being 1 for a
    question and -1 for an answer, on features that are centred and divided by their root mean square over the fitting
    half. One scale for all features makes the result independent of the scale and the rotation of the embeddings. The
    ridge term gives separable data a finite minimum and reduces the variance of E = 768 weights fitted to a few
    thousand examples. The remaining variance lowers the result: an optimal accuracy of 0.89 is measured as 0.85 to
    0.87.

    Args:
      question_embeddings: float [Q, E].
      answer_embeddings: float [N, E].
      seed: seed of the draw.
      limit: largest number of examples of each kind; rounded down to an even number.

    Returns:
      The accuracy, a fraction in [0, 1].

    Raises:
      EndxError: fewer than 4 of a kind, two widths, or numbers that are not finite.
    """
    questions, answers = _draw(question_embeddings, answer_embeddings, seed, limit)
    half = len(questions) // 2
    first, second = (np.concatenate([questions[part], answers[part]]) for part in (slice(half), slice(half, None)))
    return (_held_out_accuracy(first, second) + _held_out_accuracy(second, first)) / 2


def same_side_neighbours(
    question_embeddings, answer_embeddings, *, neighbours: int = 10, seed: int = 0, limit: int = 2000
) -> float:
    """Returns the share of nearest neighbours, by cosine, that are of the same kind (question or answer).

    It is 0.5 if the kinds are mixed and 1.0 if they are separate, as in a t-SNE plot. Unlike the probe it distinguishes
    towers that merely encode the kind from towers that embed questions and answers in different regions: on SQuAD the
    siamese all-MiniLM-L6-v2 has 0.59, and 1.00 after a random rotation of the answers.

    Args:
      question_embeddings: float [Q, E]; pairs in the same rows, as for `probe_accuracy`.
      answer_embeddings: float [N, E].
      neighbours: neighbours per embedding; fewer if there are few embeddings.
      seed: seed of the draw.
      limit: largest number of examples of each kind; rounded down to an even number.

    Returns:
      The mean over all examples drawn, a fraction in [0, 1].

    Raises:
      EndxError: see `probe_accuracy`.
    """
    both = unit_rows(np.concatenate(_draw(question_embeddings, answer_embeddings, seed, limit)))
    cosines = both @ both.T
    np.fill_diagonal(cosines, -np.inf)
    nearest = np.argpartition(-cosines, min(neighbours, len(both) - 2), axis=1)[:, : min(neighbours, len(both) - 1)]
    is_question = np.arange(len(both)) < len(both) // 2
    return float(np.mean(is_question[nearest] == is_question[:, None]))


def _draw(question_embeddings, answer_embeddings, seed: int, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """Draws equally many rows of both kinds, an even number n: float64 [n, E] each, the same rows if Q = N."""
    questions, answers = np.asarray(question_embeddings), np.asarray(answer_embeddings)
    count = min(len(questions), len(answers), limit) // 2 * 2
    if count < SMALLEST:
        raise EndxError(
            f"{len(questions)} questions and {len(answers)} answers, at most {limit} of each, are too few to measure "
            f"their overlap: give at least {SMALLEST} of each"
        )
    if questions.shape[1] != answers.shape[1]:
        raise EndxError(
            f"question embeddings are {questions.shape[1]} wide and answer embeddings {answers.shape[1]}: encode both "
            "with the same model"
        )
    rng = np.random.default_rng(seed)
    question_rows = rng.permutation(len(questions))
    answer_rows = question_rows if len(questions) == len(answers) else rng.permutation(len(answers))
    drawn = questions[question_rows[:count]].astype(np.float64), answers[answer_rows[:count]].astype(np.float64)
    if not all(np.isfinite(part).all() for part in drawn):
        raise EndxError("the embeddings are not all finite: evaluate a checkpoint from before the training diverged")
    return drawn


def _held_out_accuracy(fitting: np.ndarray, measuring: np.ndarray) -> float:
    """Fits the probe to one half and measures it on the other; both are [n, E], the questions before the answers."""
    from sklearn.linear_model import LogisticRegression

    is_question = np.arange(len(fitting)) < len(fitting) // 2
    centre = fitting.mean(axis=0)
    scale = np.sqrt(np.mean((fitting - centre) ** 2)) or 1.0
    # scikit-learn minimises the sum of the losses + |w|^2 / (2 C).
    probe = LogisticRegression(C=1 / (RIDGE * len(fitting)), tol=1e-6, max_iter=15_000)
    probe.fit((fitting - centre) / scale, is_question)
    return float(probe.score((measuring - centre) / scale, is_question))


def question_spread(question_embeddings, qrels: Sequence[Sequence[int]], *, fewest: int) -> float:
    """Computes the mean squared distance between questions of the same answer, relative to that of any two questions.

    Yu et al. (2020, Table 3) call the first SSE, "the sum of squared distances [...] between two different questions
    aligned to same answer", without defining the average. Here it is the mean over all pairs of questions with a
    common answer, each counted once per answer, on the unit sphere: a squared distance is 2 - 2 cosine. It is divided
    by the mean over all pairs of questions, since collapsed embeddings have a small SSE too.

    Args:
      question_embeddings: float [Q, E].
      qrels: the right candidates of each question.
      fewest: minimum number of questions of an answer that counts, at least 2 (the paper says 8, more than 8, and 10);
        at least one answer must have so many.
    """
    questions = unit_rows(np.asarray(question_embeddings, np.float64))
    groups = [questions[rows] for rows in questions_by_candidate(qrels).values() if len(rows) >= max(fewest, 2)]
    distances, pairs = np.sum([_pairwise(group) for group in groups], axis=0)
    of_all, all_pairs = _pairwise(questions)
    return float(distances / pairs / (of_all / all_pairs))


def _pairwise(points: np.ndarray) -> tuple[float, int]:
    """Returns the sum of squared distances over all pairs of points [n, E], and the number of pairs.

    sum_{i<j} |x_i - x_j|^2 = n sum_i |x_i - m|^2, where m is their mean.
    """
    count = len(points)
    return count * float(np.sum(np.square(points - points.mean(axis=0)))), count * (count - 1) // 2
