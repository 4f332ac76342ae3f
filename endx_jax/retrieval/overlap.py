"""How far questions and answers are embedded apart: numbers for what Figure 2 of Dong et al. (2022) shows by t-SNE."""

import numpy as np

from endx_jax.errors import EndxError
from endx_jax.numerics import unit_rows

SMALLEST = 4
RIDGE = 0.03


def probe_accuracy(question_embeddings, answer_embeddings, *, seed: int = 0, limit: int = 5000) -> float:
    """Accuracy of a linear probe in telling question from answer embeddings that it was not fitted to.

    0.5 where the two clouds lie on each other, 1.0 where a plane parts them: a number for Figure 2 of Dong et al.
    (2022), which shows the clouds by t-SNE. The probe sees more than t-SNE does: questions differ from answers in form,
    so a siamese model may stand well above 0.5 although its clouds mix in a plot (all-MiniLM-L6-v2 on SQuAD: 0.95).
    Compare models on the same examples at the same width.

    Draw: equally many of both kinds, at random. One half fits the probe and the other measures it, then they change
    places, and the two accuracies are averaged. With n of each kind drawn, the standard error is below 0.5 / sqrt(n),
    0.007 at 5,000.

    Pairs: an answer whose own question is in the fitting half is pulled to the questions' side, and the accuracy falls,
    below 0.5 where the clouds coincide (to 0.42, with 2,500 pairs of cosine 0.6 each parted so). With as many questions
    as answers, row i of both therefore falls in the same half: give pairs in the same rows, no answer twice. With other
    numbers no pairs are known, and some are parted: at the sizes of SQuAD's ReQA set 0.5 is measured as about 0.48.

    Probe: logistic regression, the minimum of mean log(1 + exp(-y (w x + b))) + RIDGE / 2 |w|^2, y being 1 for a
    question and -1 for an answer, on features that are centred and divided by their root mean square over the fitting
    half. That is one number for all features: the result does not depend on the scale of the embeddings, nor on their
    axes, which mean nothing and which a number for each feature would bring in. The ridge gives clouds that a plane
    parts a minimum too, and takes some noise from E = 768 weights fitted to a few thousand examples. What noise is left
    lowers the number: clouds that the best plane parts at 0.89 are measured as 0.85 to 0.87.

    Args:
      question_embeddings: float [Q, E].
      answer_embeddings: float [N, E].
      seed: of the draw.
      limit: the most examples of each kind; made even.

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
    """Share of an embedding's nearest neighbours, by cosine, that are of its own kind.

    0.5 where the clouds mix, 1.0 where they lie apart. It is close to what t-SNE draws, and unlike the probe it leaves
    room between towers that merely tell questions from answers and towers that embed them in different places: on SQuAD
    the siamese all-MiniLM-L6-v2 has 0.59, and 1.00 once the answers are turned away by a random rotation.

    Args:
      question_embeddings: float [Q, E]; pairs in the same rows, as for `probe_accuracy`.
      answer_embeddings: float [N, E].
      neighbours: how many, at most; fewer where there are few embeddings.
      seed: of the draw.
      limit: the most examples of each kind; made even.

    Returns:
      The mean over all examples drawn, a fraction in [0, 1].

    Raises:
      EndxError: as `probe_accuracy`.
    """
    both = unit_rows(np.concatenate(_draw(question_embeddings, answer_embeddings, seed, limit)))
    cosines = both @ both.T
    np.fill_diagonal(cosines, -np.inf)
    nearest = np.argpartition(-cosines, min(neighbours, len(both) - 2), axis=1)[:, : min(neighbours, len(both) - 1)]
    is_question = np.arange(len(both)) < len(both) // 2
    return float(np.mean(is_question[nearest] == is_question[:, None]))


def _draw(question_embeddings, answer_embeddings, seed: int, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """Equally many rows of both kinds, an even number, at random: float64 [n, E] each, the same rows where Q = N."""
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
    is_question = np.arange(len(fitting)) < len(fitting) // 2
    centre = fitting.mean(axis=0)
    scale = np.sqrt(np.mean((fitting - centre) ** 2)) or 1.0
    weights, intercept = _fit((fitting - centre) / scale, np.where(is_question, 1.0, -1.0))
    logits = (measuring - centre) / scale @ weights + intercept
    return float(np.mean((logits > 0) == is_question))


def _fit(features: np.ndarray, signs: np.ndarray) -> tuple[np.ndarray, float]:
    """The weights [E] and the intercept of the ridge logistic regression of signs [n] on features [n, E]."""
    from scipy.optimize import minimize
    from scipy.special import expit

    def objective(parameters):
        weights, intercept = parameters[:-1], parameters[-1]
        # einsum and not @: as fast at this shape, and on a busy machine, where threads of BLAS wait for each other,
        # several times faster.
        margins = signs * (np.einsum("ne,e->n", features, weights) + intercept)
        slopes = -signs * expit(-margins) / len(signs)
        loss = np.logaddexp(0.0, -margins).mean() + RIDGE / 2 * weights @ weights
        return loss, np.append(np.einsum("n,ne->e", slopes, features) + RIDGE * weights, slopes.sum())

    # The objective is convex: a gradient of zero, and not a small step, says that this is the minimum.
    stop = {"ftol": 0.0, "gtol": 1e-6}
    start = np.zeros(features.shape[1] + 1)
    solution = minimize(objective, start, jac=True, method="L-BFGS-B", options=stop).x
    return solution[:-1], solution[-1]
