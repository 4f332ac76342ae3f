"""Overlap of question and answer embeddings: Figure 2 of Dong et al. (2022), with two measures."""

import dataclasses

import numpy as np

from endx_jax.data.records import one_to_one
from endx_jax.errors import EndxError
from endx_jax.papers.figures import style
from endx_jax.papers.figures.figure import Figure, rounded, tsne
from endx_jax.papers.figures.study import Study
from endx_jax.parallel.console import say
from endx_jax.retrieval.diagnostics import SMALLEST, probe_accuracy, same_side_neighbours
from endx_jax.settings import key

# Points of a figure, below which nothing is seen in it.
FEWEST = 10


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of the figure."""

    pairs: int = key(400, "pairs that are shown (Dong et al.: 400)")
    measured: int = key(2000, "maximum pairs for the measures")
    perplexity: float = key(30.0, "perplexity of t-SNE, an approximate number of neighbours")
    seed: int = key(0, "seed of the draw and of t-SNE")


def clouds(questions: np.ndarray, answers: np.ndarray, options: Options) -> dict:
    """Computes one model's panel.

    Args:
      questions: [n, E], row i the question of row i of `answers`.
      answers: [n, E], no answer twice.
      options: the first `pairs` rows are shown, all are measured.
    """
    shown = min(options.pairs, len(questions))
    places = tsne(
        np.concatenate([questions[:shown], answers[:shown]]), perplexity=options.perplexity, seed=options.seed
    )
    return {
        "question": rounded(places[:shown]),
        "answer": rounded(places[shown:]),
        "probe_accuracy": probe_accuracy(questions, answers, seed=options.seed),
        "same_side_neighbours": same_side_neighbours(questions, answers, seed=options.seed),
    }


def data(study: Study, options: Options) -> dict:
    """Computes t-SNE of the same pairs for every model, and two measures of the separation of the sides."""
    study.distinct()
    records = study.records
    found = one_to_one(records.qrels)
    if len(found) < max(FEWEST, SMALLEST):
        raise EndxError(f"only {len(found)} answers have a question of their own; {FEWEST} are the fewest to draw")
    drawn = np.random.default_rng(options.seed).permutation(len(found))[: max(options.measured, options.pairs)]
    questions, answers = (
        [texts[found[row][side]] for row in drawn] for side, texts in enumerate((records.questions, records.candidates))
    )
    models = []
    for source in study.sources:
        embedded = study.embed(source, "question", questions), study.embed(source, "answer", answers)
        say(f"{source.name}: t-SNE of {min(options.pairs, len(drawn)):,} pairs")
        models.append({"name": source.name, **clouds(*embedded, options)})
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
            f"linear probe {model['probe_accuracy']:.2f}\nsame side {model['same_side_neighbours']:.2f}",
            fontsize=8,
        )
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, markerscale=2.2)
    return figure


FIGURE = Figure("t-SNE of questions and answers, one panel a model, and how far they overlap", Options, data, draw)
