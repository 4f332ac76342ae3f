"""Similarity of questions that share an answer: Figure 3 of ENDX (Wang et al. 2021)."""

import functools
import itertools
import pathlib

import jax
import numpy as np

from endx_jax.batch import Batch
from endx_jax.errors import EndxError
from endx_jax.experiment.model import best_params, read_model
from endx_jax.inference.saved import MODEL
from endx_jax.numerics import unit_rows
from endx_jax.parallel.mesh import MeshSettings, make_mesh
from reproduction.figures import style
from reproduction.figures.figure import Figure, rounded
from reproduction.figures.study import LEXICAL, Source, Study, questions_of, with_at_least

# Pairs that a teacher embeds at a time.
TOGETHER = 64
# Answers whose questions are shown, and questions of each; the numbers are over all answers with at least so many.
ANSWERS, QUESTIONS = 5, 6


def blocks(cosines: np.ndarray, groups: np.ndarray) -> dict[str, float]:
    """Measures how well similarities separate questions that share an answer from others.

    Args:
      cosines: [n, n].
      groups: int [n], the answer of each question; at least one is shared and not all are one.

    Returns:
      `same` and `other`: mean cosine of two questions of one answer and of two answers; `auc`: the probability that the
      former exceeds the latter, ties counted half.
    """
    upper = np.triu_indices(len(groups), 1)
    same, values = (groups[:, None] == groups)[upper], cosines[upper]
    lower = np.sort(values[~same])
    below = np.searchsorted(lower, values[same], "left") + np.searchsorted(lower, values[same], "right")
    return {
        "same": float(values[same].mean()),
        "other": float(values[~same].mean()),
        "auc": float(below.mean() / 2 / len(lower)),
    }


def data(study: Study) -> dict:
    """Computes cosines of the same questions for every model, and for its teacher if it had one."""
    study.distinct()
    records = study.records
    rows, groups = comparable(questions_of(records.qrels, len(records.candidates)), QUESTIONS)
    articles = None if records.groups is None else [records.groups[row] for row in rows]
    shown = sample(groups, articles)
    questions = [records.questions[row] for row in rows]
    answers = [records.candidates[group] for group in groups]
    panels = []
    for source in study.sources:
        taught = None if source.place == LEXICAL else teacher_embeddings(source, questions, answers)
        if taught is not None:
            panels.append(_panel(f"{source.name}: teacher", taught, groups, shown))
        panels.append(_panel(source.name, study.embed(source, "question", questions), groups, shown))
    return {
        "questions": [questions[place] for place in shown],
        "answers": [answers[place] for place in shown],
        "groups": [groups[place] for place in shown],
        "measured": {"questions": len(rows), "answers": len(set(groups))},
        "panels": panels,
    }


def comparable(asked: list[list[int]], questions: int) -> tuple[list[int], list[int]]:
    """Returns the questions of all answers with enough of them, grouped by answer, and the answer of each.

    A question with several such answers stands under the first, if others still leave that enough.
    """
    rows: dict[int, int] = {}
    for answer in with_at_least(asked, questions):
        own = [row for row in asked[answer] if row not in rows]
        if len(own) >= questions:
            rows |= dict.fromkeys(own, answer)
    if len(set(rows.values())) < 2:
        raise EndxError(f"only one answer has {questions} questions: give more questions")
    return list(rows), list(rows.values())


def sample(
    groups: list[int], articles: list[str] | None, *, answers: int = ANSWERS, questions: int = QUESTIONS, seed: int = 0
) -> list[int]:
    """Draws answers of different articles and returns the positions of their first questions."""
    own: dict[int, list[int]] = {}
    for place, group in enumerate(groups):
        own.setdefault(group, []).append(place)
    taken: list[int] = []
    seen: set[str] = set()
    for answer in np.random.default_rng(seed).permutation(list(own)).tolist():
        article = str(answer) if articles is None else articles[own[answer][0]]
        if article not in seen and len(seen) < answers:
            seen.add(article)
            taken += own[answer][:questions]
    return taken


def teacher_embeddings(source: Source, questions: list[str], answers: list[str]) -> np.ndarray | None:
    """Returns the teacher's embeddings [n, E] of questions with their answers; None without a teacher."""
    if not (pathlib.Path(source.place).expanduser() / MODEL).is_dir():
        return None
    model = read_model(source.workdir)
    if model.method.teacher is None:
        return None
    params, _ = best_params(source.workdir, model, make_mesh(MeshSettings(), jax.local_devices()[:1]))
    if "teacher" not in params:
        return None
    tables = {"question": model.processors["question"](questions), "answer": model.processors["answer"](answers)}
    embed = jax.jit(functools.partial(model.method.teacher, model.objective))
    found = []
    for start in range(0, len(questions), TOGETHER):
        # The last batch is filled up with texts from the front, so that all have one shape.
        rows = np.arange(start, start + TOGETHER) % len(questions)
        tokens = {side: table.pad(rows, int(table.lengths.max())) for side, table in tables.items()}
        ids = rows.astype(np.int32)
        batch = Batch(**tokens, question_id=ids, answer_id=ids, positive_ids=ids[:, None])  # type: ignore[arg-type]
        found.append(np.asarray(embed(params, batch).question))
    return np.concatenate(found)[: len(questions)]


def _panel(name: str, embeddings: np.ndarray, groups: list[int], shown: list[int]) -> dict:
    unit = unit_rows(np.asarray(embeddings, np.float64))
    cosines = unit @ unit.T
    return {"name": name, "cosines": rounded(cosines[np.ix_(shown, shown)]), **blocks(cosines, np.asarray(groups))}


def draw(data: dict):
    """Draws one matrix for each model on a shared colour scale, with lines between answers."""
    found, groups = data["panels"], np.asarray(data["groups"])
    columns = min(len(found), 3)
    figure, axes = style.panels(len(found), columns=columns, height=style.WIDTH / columns + 0.45)
    off_diagonal = ~np.eye(len(groups), dtype=bool)
    lowest = min(np.asarray(panel["cosines"])[off_diagonal].min() for panel in found)
    edges = [0, *(np.flatnonzero(np.diff(groups)) + 1), len(groups)]
    middles = [(start + stop - 1) / 2 for start, stop in itertools.pairwise(edges)]
    for axis, panel in zip(axes, found, strict=True):
        image = axis.imshow(panel["cosines"], cmap=style.SEQUENTIAL, vmin=lowest, vmax=1, interpolation="nearest")
        for edge in edges[1:-1]:
            axis.axhline(edge - 0.5, color="white", linewidth=0.8)
            axis.axvline(edge - 0.5, color="white", linewidth=0.8)
        axis.set_title(panel["name"])
        axis.set_xticks(middles, [f"A{n}" for n in range(1, len(edges))])
        axis.set_yticks(middles, [f"A{n}" for n in range(1, len(edges))])
        axis.tick_params(length=0)
        axis.set_xlabel(
            f"mean cosine: same answer {panel['same']:.2f}\nanother {panel['other']:.2f}, AUC {panel['auc']:.3f}",
            fontsize=8,
        )
        for spine in axis.spines.values():
            spine.set_visible(False)
    axes[0].set_ylabel("questions, by their answer A")
    figure.colorbar(image, ax=axes, label="cosine of two questions", shrink=0.75, pad=0.02, aspect=25)
    return figure


FIGURE = Figure("how alike questions are to each model and its teacher, by the answer they share", data, draw)
