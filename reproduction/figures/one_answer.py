"""t-SNE of one answer and its questions: Figure 4 of ENDX (Wang et al. 2021)."""

import numpy as np

from endx_jax.data.records import one_to_one
from endx_jax.numerics import unit_rows
from endx_jax.parallel.console import say
from reproduction.figures import style
from reproduction.figures.figure import Figure, rounded, tsne
from reproduction.figures.study import Source, Study, questions_of, with_at_least

# Questions of the answer (ENDX: 6), and other pairs that are drawn with them, to compare by.
QUESTIONS, AROUND = 6, 150
PERPLEXITY = 15.0


def spread(questions: np.ndarray, groups: np.ndarray) -> float:
    """Returns the mean distance between questions of one answer, relative to that between all questions.

    This is the mean squared distance of two questions with one answer over that of any two: 0 if the questions of an
    answer are one point, 1 if they are no closer than others. It does not depend on the scale of the embeddings.

    Args:
      questions: [n, E].
      groups: int [n], the answer of each; every answer has at least two.
    """
    questions = np.asarray(questions, np.float64)

    def mean_of_pairs(rows: np.ndarray) -> float:
        return 2 * float(np.var(rows, axis=0).sum()) * len(rows) / (len(rows) - 1)

    within = [mean_of_pairs(questions[groups == group]) for group in np.unique(groups)]
    return float(np.mean(within)) / mean_of_pairs(questions)


def data(study: Study) -> dict:
    """Computes t-SNE of an answer, its questions and other pairs by model; and the spread over all such answers."""
    study.distinct()
    records = study.records
    asked = questions_of(records.qrels, len(records.candidates))
    many = with_at_least(asked, QUESTIONS)
    rng = np.random.default_rng(0)
    answer = int(rng.choice(many))
    own = asked[answer][:QUESTIONS]
    others = [pair for pair in one_to_one(records.qrels) if pair[1] != answer and pair[0] not in asked[answer]]
    others = [others[row] for row in rng.permutation(len(others))[:AROUND]]
    questions = [records.questions[row] for row in (*own, *(q for q, _ in others))]
    answers = [records.candidates[row] for row in (answer, *(a for _, a in others))]
    sharing = [(row, group) for group in many for row in asked[group]]
    shared, groups = [records.questions[row] for row, _ in sharing], np.asarray([group for _, group in sharing])
    models = [
        {
            **_places(study, source, questions, answers, own=len(own)),
            "spread": spread(study.embed(source, "question", shared), groups),
        }
        for source in study.sources
    ]
    texts = {"answer": answers[0], "questions": questions[: len(own)]}
    return {**texts, "own": len(own), "answers": len(many), "at_least": QUESTIONS, "models": models}


def _places(study: Study, source: Source, questions: list[str], answers: list[str], *, own: int) -> dict:
    """Computes one model's projection of the texts; the first `own` questions belong to the first answer."""
    embedded = study.embed(source, "question", questions), study.embed(source, "answer", answers)
    say(f"{source.name}: t-SNE of {len(questions) + len(answers):,} texts")
    places = tsne(np.concatenate(embedded), perplexity=PERPLEXITY)
    cosines = unit_rows(embedded[0][:own]) @ unit_rows(embedded[1][:1]).T
    return {
        "name": source.name,
        "question": rounded(places[: len(questions)]),
        "answer": rounded(places[len(questions) :]),
        "cosine_to_answer": float(cosines.mean()),
    }


def draw(data: dict):
    """Draws one panel for each model: the answer, lines to its questions, and the other pairs in grey."""
    models, own = data["models"], data["own"]
    columns = min(len(models), 3)
    figure, axes = style.panels(len(models), columns=columns, height=style.WIDTH / columns + 0.3)
    for axis, model in zip(axes, models, strict=True):
        question, answer = np.asarray(model["question"]), np.asarray(model["answer"])
        behind = {"s": 9, "c": style.MUTED, "linewidths": 0, "alpha": 0.55}
        axis.scatter(*question[own:].T, marker="o", label="other questions", **behind)
        axis.scatter(*answer[1:].T, marker="^", label="other answers", **behind)
        for place in question[:own]:
            axis.plot(*np.stack([place, answer[0]]).T, color=style.QUESTION, linewidth=0.7, alpha=0.6, zorder=2)
        front = {"edgecolors": "white", "linewidths": 0.6, "zorder": 3}
        axis.scatter(*question[:own].T, s=36, c=style.QUESTION, marker="o", label="its questions", **front)
        axis.scatter(*answer[:1].T, s=60, c=style.ANSWER, marker="^", label="the answer", **front)
        style.bare(axis)
        axis.set(title=model["name"], xlim=(-1.06, 1.06), ylim=(-1.06, 1.06), box_aspect=1)
        axis.set_xlabel(
            f"mean cosine of the {own} to their answer {model['cosine_to_answer']:.2f}\n"
            f"spread over {data['answers']:,} answers with {data['at_least']}+ questions {model['spread']:.2f}",
            fontsize=8,
        )
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


FIGURE = Figure("t-SNE of an answer and its questions among others, one panel a model", data, draw)
