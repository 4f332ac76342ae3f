"""Overlap of question and answer embeddings: Figure 2 of Dong et al. (2022), with two measures."""

import numpy as np

from endx_jax.data.records import one_to_one
from endx_jax.errors import EndxError
from endx_jax.parallel.console import say
from endx_jax.retrieval.diagnostics import SMALLEST, probe_accuracy, same_side_neighbours
from reproduction.figures import style
from reproduction.figures.figure import Figure, rounded, tsne
from reproduction.figures.study import Study

# Points of a figure, below which nothing is seen in it; pairs that are drawn (Dong et al.: 400), and measured at most.
FEWEST, DRAWN, MEASURED = 10, 400, 2000
PERPLEXITY = 30.0


def clouds(questions: np.ndarray, answers: np.ndarray, drawn: int = DRAWN) -> dict:
    """Computes one model's panel.

    Args:
      questions: [n, E], row i the question of row i of `answers`.
      answers: [n, E], no answer twice.
      drawn: the first `drawn` rows are drawn, all are measured.
    """
    shown = min(drawn, len(questions))
    places = tsne(np.concatenate([questions[:shown], answers[:shown]]), perplexity=PERPLEXITY)
    return {
        "question": rounded(places[:shown]),
        "answer": rounded(places[shown:]),
        "probe_accuracy": probe_accuracy(questions, answers),
        "same_side_neighbours": same_side_neighbours(questions, answers),
    }


def data(study: Study) -> dict:
    """Computes t-SNE of the same pairs for every model, and two measures of the separation of the sides."""
    study.distinct()
    records = study.records
    found = one_to_one(records.qrels)
    if len(found) < max(FEWEST, SMALLEST):
        raise EndxError(f"only {len(found)} answers have a question of their own; {FEWEST} are the fewest to draw")
    drawn = np.random.default_rng(0).permutation(len(found))[:MEASURED]
    questions, answers = (
        [texts[found[row][side]] for row in drawn] for side, texts in enumerate((records.questions, records.candidates))
    )
    models = []
    for source in study.sources:
        embedded = study.embed(source, "question", questions), study.embed(source, "answer", answers)
        say(f"{source.name}: t-SNE of {min(DRAWN, len(drawn)):,} pairs")
        models.append({"name": source.name, **clouds(*embedded)})
    return {"models": models, "pairs": len(models[0]["question"]), "measured": len(drawn)}


def draw(data: dict):
    """Draws one panel for each model, with its measures below."""
    models = data["models"]
    columns = min(len(models), 5 if len(models) == 5 else 4)
    figure, axes = style.panels(len(models), columns=columns, height=style.WIDTH / columns + 0.6, extra=0.3)
    for panel, model in zip(axes, models, strict=True):
        for side, colour, marker in (("question", style.QUESTION, "o"), ("answer", style.ANSWER, "^")):
            x, y = np.asarray(model[side]).T
            panel.scatter(x, y, s=5, c=colour, marker=marker, linewidths=0, alpha=0.75, label=f"{side}s")
        style.bare(panel)
        panel.set(title=model["name"], xlim=(-1.06, 1.06), ylim=(-1.06, 1.06), box_aspect=1)
        panel.set_xlabel(
            f"linear probe {model['probe_accuracy']:.2f}\nsame side {model['same_side_neighbours']:.2f}", fontsize=8
        )
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, markerscale=2.2)
    return figure


FIGURE = Figure("t-SNE of questions and answers, one panel a model, and how far they overlap", data, draw)
