"""Questions that share an answer, projected by SVD: Figure 2 of Yu et al. (2020)."""

import numpy as np

from endx_jax.numerics import unit_rows
from reproduction.figures import drawing
from reproduction.figures.drawing import rounded
from reproduction.figures.study import Study, with_at_least


def shared_answer(study: Study) -> dict:
    """Computes each model's projection of the answer with the most questions, and of these."""
    answer, own = max(with_at_least(study.records, 2).items(), key=lambda one: len(one[1]))
    models = []
    for source in study.sources:
        questions = unit_rows(np.asarray(study.embed(source, "question")[own], np.float64))
        embedded = unit_rows(np.asarray(study.embed(source, "answer")[[answer]], np.float64))
        places, shares = svd(np.concatenate([questions, embedded]))
        models.append(
            {
                "name": source.name,
                "questions": rounded(places[:-1]),
                "answer": rounded(places[-1]),
                "shares": rounded(shares),
                "cosine_of_questions": float((questions @ questions.T)[np.triu_indices(len(own), 1)].mean()),
                "cosine_to_answer": float((questions @ embedded.T).mean()),
            }
        )
    texts = {"answer": study.records.candidates[answer], "questions": [study.records.questions[row] for row in own]}
    return {**texts, "models": models}


def svd(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Projects unit rows [N, E] on their first two singular vectors, without centring.

    Returns:
      float64 [N, 2], the rows' coordinates, with means of at least 0; and [2], the share of squares in each component.
    """
    left, values, _ = np.linalg.svd(rows, full_matrices=False)
    places = left[:, :2] * values[:2]
    return places * np.where(places.mean(axis=0) < 0, -1.0, 1.0), values[:2] ** 2 / np.sum(values**2)


def draw_shared_answer(data: dict):
    """Draws the projections on one scale."""
    models = data["models"]
    figure, axes = drawing.panels(len(models), columns=2, height=3.6)
    every = np.concatenate([np.asarray([*model["questions"], model["answer"]]) for model in models])
    centre, half = (every.max(axis=0) + every.min(axis=0)) / 2, np.ptp(every, axis=0).max() / 2 * 1.12
    for axis, model in zip(axes, models, strict=True):
        axis.scatter(*np.asarray(model["questions"]).T, s=24, c=drawing.QUESTION, label="questions", linewidths=0)
        axis.scatter(*model["answer"], s=60, c=drawing.ANSWER, marker="^", label="their answer", linewidths=0)
        axis.set(xlim=(centre[0] - half, centre[0] + half), ylim=(centre[1] - half, centre[1] + half), box_aspect=1)
        cosines = f"cosine {model['cosine_of_questions']:.2f}, to the answer {model['cosine_to_answer']:.2f}"
        axis.set_title(f"{model['name']}\n{cosines}")
        first, second = (f"component {n} ({share:.0%} of squares)" for n, share in enumerate(model["shares"], 1))
        axis.set(xlabel=first, ylabel=second)
        axis.grid(True)
    drawing.legend(figure, axes[0], 2)
    return figure
