"""Comparison of two models on questions that share an answer: Figure 2 of Yu et al. (2020)."""

import textwrap

import numpy as np

from endx_jax.data.records import RetrievalSet
from endx_jax.errors import EndxError
from endx_jax.numerics import unit_rows
from endx_jax.parallel.console import say
from endx_jax.retrieval.evaluate import Evaluation, evaluate
from reproduction.figures import style
from reproduction.figures.figure import Figure, rounded, svd
from reproduction.figures.study import Source, Study, bar, questions_of, with_at_least

BOTH, NEITHER = "both", "neither"
# Questions listed for each model that only it gets right.
EXAMPLES = 5
# Characters of a line of an example.
LINE = 58
# Width of the bars, in widths of a projection.
NARROW = 0.72


def outcomes(first: np.ndarray, second: np.ndarray) -> dict[str, np.ndarray]:
    """Counts questions that both models, only one, or neither rank a right answer first for.

    Args:
      first: the first model's ranks of right candidates [Q, P], ascending.
      second: those of the second model.

    Returns:
      Rows of questions, by `both`, `first`, `second` and `neither`.
    """
    one, other = first[:, 0] <= 1, second[:, 0] <= 1
    masks = {BOTH: one & other, "first": one & ~other, "second": ~one & other, NEITHER: ~one & ~other}
    return {name: np.flatnonzero(mask) for name, mask in masks.items()}


def data(study: Study) -> dict:
    """Computes each model's projection of one answer and its questions, and where the two models differ."""
    study.distinct()
    if len(study.sources) != 2:
        raise EndxError(f"this figure compares two models: give --run twice, not {len(study.sources)} times")
    records = study.records
    answer, own = _case(records)
    models = [_projected(study, source, answer, own) for source in study.sources]
    found = []
    for source in study.sources:
        say(f"{source.name}: ranking {len(records.questions):,} questions")
        score = study.scores(source, records)
        with bar("ranking") as progress:
            ranked = evaluate(score, records.qrels, candidates=len(records.candidates), depth=1, progress=progress)
        found.append(ranked)
    parts = outcomes(found[0].ranks, found[1].ranks)
    rng = np.random.default_rng(0)
    examples = {
        name: [_example(records, row, found) for row in rng.permutation(parts[name])[:EXAMPLES]]
        for name in ("first", "second")
    }
    return {
        "answer": records.candidates[answer],
        "questions": [records.questions[row] for row in own],
        "models": models,
        "counts": {name: len(rows) for name, rows in parts.items()},
        "examples": examples,
    }


def _projected(study: Study, source: Source, answer: int, own: list[int]) -> dict:
    """Computes one model's panel from the embeddings that the ranking uses."""
    questions = study.embed(source, "question", study.records.questions)[own]
    embedded = study.embed(source, "answer", study.records.candidates)[answer]
    places, shares = svd(np.concatenate([questions, embedded[None]]))
    unit = unit_rows(np.asarray(questions, np.float64))
    upper = np.triu_indices(len(own), 1)
    return {
        "name": source.name,
        "questions": rounded(places[:-1]),
        "answer": rounded(places[-1]),
        "shares": rounded(shares),
        "cosine_of_questions": float((unit @ unit.T)[upper].mean()),
        "cosine_to_answer": float((unit @ unit_rows(embedded)).mean()),
    }


def _case(records: RetrievalSet) -> tuple[int, list[int]]:
    """Returns the answer with the most questions, and their rows."""
    asked = questions_of(records.qrels, len(records.candidates))
    answer = max(with_at_least(asked, 2), key=lambda candidate: len(asked[candidate]))
    return answer, asked[answer]


def _example(records: RetrievalSet, row: int, found: list[Evaluation]) -> dict:
    """Returns a question, a right answer, and each model's first candidate."""
    firsts = [records.candidates[evaluation.top_ids[row, 0]] for evaluation in found]
    right = records.candidates[records.qrels[row][0]]
    return {
        "question": records.questions[row],
        "right": right,
        "first_by_first": firsts[0],
        "first_by_second": firsts[1],
    }


def draw(data: dict):
    """Draws both projections on one scale, a bar of shared and separate successes, and two examples."""
    from matplotlib.figure import Figure as Canvas

    models = data["models"]
    names = [model["name"] for model in models]
    figure = Canvas(figsize=(style.WIDTH, 4.4), layout="constrained")
    top, bottom = figure.subfigures(2, 1, squeeze=False, height_ratios=(3.1, 1.3)).ravel()
    axes = top.subplots(1, 3, width_ratios=(1, 1, NARROW))
    every = np.concatenate([np.asarray([*model["questions"], model["answer"]]) for model in models])
    centre, half = (every.max(axis=0) + every.min(axis=0)) / 2, np.ptp(every, axis=0).max() / 2 * 1.12
    for axis, model in zip(axes, models, strict=False):
        axis.scatter(*np.asarray(model["questions"]).T, s=24, c=style.QUESTION, label="questions", linewidths=0)
        axis.scatter(*model["answer"], s=60, c=style.ANSWER, marker="^", label="their answer", linewidths=0)
        axis.set(xlim=(centre[0] - half, centre[0] + half), ylim=(centre[1] - half, centre[1] + half), box_aspect=1)
        shares = [f"component {n} ({share:.0%} of squares)" for n, share in enumerate(model["shares"], 1)]
        cosines = f"cosine {model['cosine_of_questions']:.2f}, to the answer {model['cosine_to_answer']:.2f}"
        axis.set_title(model["name"], pad=18)
        axis.text(0.5, 1.03, cosines, transform=axis.transAxes, fontsize=7.5, ha="center")
        axis.set(xlabel=shares[0], ylabel=shares[1])
        axis.grid(True)
    top.legend(*axes[0].get_legend_handles_labels(), loc="outside lower left", ncols=2, fontsize=8)
    _outcome_bars(axes[2], names, data["counts"])
    for axis, side, name, other in zip(bottom.subplots(1, 2), ("first", "second"), names, reversed(names), strict=True):
        axis.set_axis_off()
        if data["examples"][side]:
            example = data["examples"][side][0]
            wrong = example["first_by_second" if side == "first" else "first_by_first"]
            lines = (example["question"], f"Right: {example['right']}", f"{other}: {wrong}")
            text = "\n".join(textwrap.fill(line, LINE, max_lines=3, placeholder=" ...") for line in lines)
            axis.text(0.02, 0.98, f"Only {name} is right", fontsize=7.5, fontweight="bold", va="top")
            axis.text(0.02, 0.84, text, fontsize=7.3, va="top", linespacing=1.25)
    return figure


def _outcome_bars(axis, names: list[str], counts: dict[str, int]) -> None:
    labels = {BOTH: "both", "first": f"only\n{names[0]}", "second": f"only\n{names[1]}", NEITHER: "neither"}
    colours = (style.COLOURS[2], style.COLOURS[5], style.COLOURS[4], style.MUTED)
    total = sum(counts.values())
    for place, name in enumerate(labels):
        share = 100 * counts[name] / total
        axis.barh(place, share, color=colours[place], height=0.7)
        axis.text(share + 1.5, place, f"{counts[name]:,}", va="center", fontsize=7.5)
    axis.set_yticks(range(len(labels)), labels.values(), fontsize=8)
    axis.invert_yaxis()
    axis.set_box_aspect(1 / NARROW)
    axis.set_title("right at rank 1", pad=18)
    axis.set_xlabel(f"% of {total:,}\nquestions")
    axis.set_xlim(0, 100 * max(counts.values()) / total * 1.38)


FIGURE = Figure("SVD of an answer and its questions by two models, and what only one gets right", data, draw)
