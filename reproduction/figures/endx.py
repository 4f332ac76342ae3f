"""Figures 2 to 4 of ENDX (Wang et al. 2021), and validation over the steps of the study's runs."""

import itertools
import statistics

import jax
import numpy as np
import tqdm

from endx_jax.batch import Batch
from endx_jax.data.sets.records import questions_by_candidate
from endx_jax.data.sets.splits import with_many_questions
from endx_jax.errors import EndxError
from endx_jax.experiment.saved_model import best_params, read_model
from endx_jax.inference.text_batches import compute_batches, equal_batches
from endx_jax.methods.endx import EndxObjective
from endx_jax.numerics import unit_rows
from endx_jax.parallel.console import say
from endx_jax.parallel.mesh import MeshSettings, make_mesh
from endx_jax.ranking.evaluate import MEASURES, evaluate_scores
from endx_jax.ranking.systems import dense_scores
from endx_jax.training import metric_log
from reproduction.figures import drawing
from reproduction.figures.drawing import rounded, tsne
from reproduction.figures.study import FigureSource, Study, one_to_one, with_at_least
from reproduction.separation import question_spread

POOLS = {"whole": "whole pool", "cut": "pool of these answers alone"}
# The highest minimum of Figure 2; lower where no answer has so many questions.
MOST = 12
# Figures 3 and 4: questions of an answer; answers that are shown; pairs that are drawn around one answer.
QUESTIONS, ANSWERS, AROUND = 6, 5, 150
# Pairs that a teacher embeds at a time.
TOGETHER = 64


def minimum_questions(study: Study) -> dict:
    """Computes each model's MRR on questions of answers with at least n, in the whole pool and among these answers."""
    records = study.records
    minimums = range(1, min(MOST, max(map(len, questions_by_candidate(records.qrels).values()))) + 1)
    parts = with_many_questions(records, minimums)
    sets = [(parts[f"answers>={n}"], parts[f"answers>={n}-alone"]) for n in minimums]
    places = {("q", name): n for n, name in enumerate(records.question_ids)}
    places |= {("a", name): n for n, name in enumerate(records.candidate_ids)}
    models = []
    for source in study.sources:

        def mrr(part, source=source) -> np.ndarray:
            questions = study.embed(source, "question")[[places["q", name] for name in part.question_ids]]
            answers = study.embed(source, "answer")[[places["a", name] for name in part.candidate_ids]]
            found = evaluate_scores(dense_scores(questions, answers), part.qrels, candidates=len(answers), depth=1)
            return np.asarray(jax.device_get(MEASURES["mrr"](found.ranks)), np.float64)

        of_question = dict(zip(records.question_ids, mrr(records), strict=True))
        of_sets = [np.asarray([of_question[name] for name in whole.question_ids]) for whole, _ in sets]
        models.append(
            {
                "name": source.name,
                "whole": rounded([of_set.mean() for of_set in of_sets]),
                "standard_error": rounded([of_set.std() / np.sqrt(len(of_set)) for of_set in of_sets]),
                "cut": rounded([mrr(alone).mean() for _, alone in sets]),
            }
        )
    return {
        "minimum": list(minimums),
        "questions": [len(whole.questions) for whole, _ in sets],
        "answers": [len(alone.candidates) for _, alone in sets],
        "models": models,
    }


def draw_minimum_questions(data: dict):
    """Draws one panel for each way to rank, with a band of two standard errors for the whole pool."""
    figure, axes = drawing.panels(2, columns=2, height=3.1, sharey=True)
    x = np.asarray(data["minimum"])
    for axis, (pool, title) in zip(axes, POOLS.items(), strict=True):
        for model in data["models"]:
            y, error = 100 * np.asarray(model[pool]), 200 * np.asarray(model["standard_error"])
            (line,) = axis.plot(x, y, label=model["name"])
            if pool == "whole":
                axis.fill_between(x, y - error, y + error, color=line.get_color(), alpha=0.12, linewidth=0)
        left = "questions" if pool == "whole" else "answers"
        axis.set_xticks(x, [f"{n}\n{count:,}" if n % 2 else f"{n}\n" for n, count in zip(x, data[left], strict=True)])
        axis.set(title=title, xlabel=f"fewest questions an answer has\n(below: {left} left)")
        axis.grid(True, axis="y")
    axes[0].set_ylabel("MRR (%)")
    drawing.legend(figure, axes[0], min(len(data["models"]), 5))
    return figure


def similarity(study: Study) -> dict:
    """Computes cosines of the same questions for every model, and for its teacher if it had one."""
    records = study.records
    # A question with several such answers stands under the first, if others still leave that enough.
    answer_of: dict[int, int] = {}
    for answer, asked in with_at_least(records, QUESTIONS).items():
        own = [row for row in asked if row not in answer_of]
        if len(own) >= QUESTIONS:
            answer_of |= dict.fromkeys(own, answer)
    rows, groups = list(answer_of), np.asarray(list(answer_of.values()))
    if len(np.unique(groups)) < 2:
        raise EndxError(f"only one answer has {QUESTIONS} questions: give more questions")
    shown = sample(groups, None if records.groups is None else [records.groups[row] for row in rows])
    questions = [records.questions[row] for row in rows]
    embedded = {}
    for source in study.sources:
        taught = teacher_embeddings(source, questions, [records.candidates[group] for group in answer_of.values()])
        if taught is not None:
            embedded[f"{source.name}: teacher"] = taught
        embedded[source.name] = study.embed(source, "question")[rows]
    panels = []
    for name, vectors in embedded.items():
        unit = unit_rows(np.asarray(vectors, np.float64))
        cosines = unit @ unit.T
        panels.append({"name": name, "cosines": rounded(cosines[np.ix_(shown, shown)]), **blocks(cosines, groups)})
    return {"questions": [questions[place] for place in shown], "groups": groups[shown].tolist(), "panels": panels}


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


def sample(groups: np.ndarray, articles: list[str] | None, *, seed: int = 0) -> list[int]:
    """Draws answers of different articles and returns the positions of their first questions."""
    taken: dict[str, list[int]] = {}
    for answer in np.random.default_rng(seed).permutation(np.unique(groups)).tolist():
        places = np.flatnonzero(groups == answer).tolist()
        taken.setdefault(str(answer) if articles is None else articles[places[0]], places[:QUESTIONS])
    return list(itertools.chain(*list(taken.values())[:ANSWERS]))


def teacher_embeddings(source: FigureSource, questions: list[str], answers: list[str]) -> np.ndarray | None:
    """Returns the teacher's embeddings [n, E] of questions with their answers; None without a teacher."""
    model = read_model(source.workdir)
    if not isinstance(model.objective, EndxObjective):
        return None
    mesh = make_mesh(MeshSettings(), jax.local_devices()[:1])
    params, _ = best_params(source.workdir, model, mesh)
    if "teacher" not in params:
        return None
    tables = {"question": model.processors["question"](questions), "answer": model.processors["answer"](answers)}
    embed = jax.jit(model.objective.embed_as_teacher)

    def batch_of(rows: np.ndarray) -> Batch:
        tokens = {side: table.pad(rows, int(table.lengths.max())) for side, table in tables.items()}
        ids = rows.astype(np.int32)
        return Batch(**tokens, question_id=ids, answer_id=ids, positive_ids=ids[:, None])  # type: ignore[arg-type]

    batches = equal_batches(len(questions), TOGETHER, mesh, batch_of)
    bar = tqdm.tqdm(total=len(questions), disable=True)
    return compute_batches(batches, lambda batch: embed(params, batch).question, mesh, bar)


def draw_similarity(data: dict):
    """Draws one matrix for each model on a shared colour scale, with lines between answers."""
    found, groups = data["panels"], np.asarray(data["groups"])
    columns = min(len(found), 3)
    figure, axes = drawing.panels(len(found), columns=columns, height=drawing.WIDTH / columns + 0.45)
    lowest = min(np.asarray(panel["cosines"]).min() for panel in found)
    edges = [0, *(np.flatnonzero(np.diff(groups)) + 1), len(groups)]
    middles = [(start + stop - 1) / 2 for start, stop in itertools.pairwise(edges)]
    for axis, panel in zip(axes, found, strict=True):
        image = axis.imshow(panel["cosines"], cmap="cividis", vmin=lowest, vmax=1, interpolation="nearest")
        for edge in edges[1:-1]:
            axis.axhline(edge - 0.5, color="white", linewidth=0.8)
            axis.axvline(edge - 0.5, color="white", linewidth=0.8)
        axis.set_title(panel["name"])
        axis.set_xticks(middles, [f"A{n}" for n in range(1, len(edges))])
        axis.set_yticks(middles, [f"A{n}" for n in range(1, len(edges))])
        measures = f"same answer {panel['same']:.2f}\nanother {panel['other']:.2f}, AUC {panel['auc']:.3f}"
        axis.set_xlabel(f"mean cosine: {measures}", fontsize=8)
    axes[0].set_ylabel("questions, by their answer A")
    figure.colorbar(image, ax=axes, label="cosine of two questions", shrink=0.75, pad=0.02, aspect=25)
    return figure


def one_answer(study: Study) -> dict:
    """Computes t-SNE of an answer, its questions and other pairs by model; and the spread over all such answers.

    The spread is the mean squared distance of two questions of one answer over that of any two questions.
    """
    records = study.records
    many = with_at_least(records, QUESTIONS)
    rng = np.random.default_rng(0)
    answer = int(rng.choice(list(many)))
    others = [pair for pair in one_to_one(records.qrels) if pair[1] != answer and pair[0] not in many[answer]]
    pairs = [(row, answer) for row in many[answer][:QUESTIONS]] + rng.permutation(others)[:AROUND].tolist()
    questions, answers = [pair[0] for pair in pairs], [pair[1] for pair in pairs[QUESTIONS - 1 :]]
    models = []
    for source in study.sources:
        asked, given = study.embed(source, "question"), study.embed(source, "answer")
        say(f"{source.name}: t-SNE of {len(questions) + len(answers):,} texts")
        places = tsne(np.concatenate([asked[questions], given[answers]]), perplexity=15.0)
        cosines = unit_rows(asked[questions[:QUESTIONS]]) @ unit_rows(given[[answer]]).T
        models.append(
            {
                "name": source.name,
                "question": rounded(places[: len(questions)]),
                "answer": rounded(places[len(questions) :]),
                "cosine_to_answer": float(cosines.mean()),
                "spread": question_spread(asked, records.qrels, fewest=QUESTIONS),
            }
        )
    texts = {"answer": records.candidates[answer], "questions": [records.questions[n] for n in questions[:QUESTIONS]]}
    return {**texts, "answers": len(many), "models": models}


def draw_one_answer(data: dict):
    """Draws one panel for each model: the answer, lines to its questions, and the other pairs in grey."""
    models = data["models"]
    columns = min(len(models), 3)
    figure, axes = drawing.panels(len(models), columns=columns, height=drawing.WIDTH / columns + 0.3)
    for axis, model in zip(axes, models, strict=True):
        question, answer = np.asarray(model["question"]), np.asarray(model["answer"])
        behind = {"s": 9, "c": drawing.MUTED, "linewidths": 0, "alpha": 0.55}
        axis.scatter(*question[QUESTIONS:].T, marker="o", label="other questions", **behind)
        axis.scatter(*answer[1:].T, marker="^", label="other answers", **behind)
        for place in question[:QUESTIONS]:
            axis.plot(*np.stack([place, answer[0]]).T, color=drawing.QUESTION, linewidth=0.7, alpha=0.6, zorder=2)
        front = {"edgecolors": "white", "linewidths": 0.6, "zorder": 3}
        axis.scatter(*question[:QUESTIONS].T, s=36, c=drawing.QUESTION, marker="o", label="its questions", **front)
        axis.scatter(*answer[:1].T, s=60, c=drawing.ANSWER, marker="^", label="the answer", **front)
        cosine = f"mean cosine of the {QUESTIONS} to their answer {model['cosine_to_answer']:.2f}"
        spread = f"spread over {data['answers']:,} answers with {QUESTIONS}+ questions {model['spread']:.2f}"
        drawing.projection(axis, model["name"], f"{cosine}\n{spread}")
    drawing.legend(figure, axes[0], 4)
    return figure


def curves(study: Study) -> dict:
    """Returns steps, and the mean and the range of the validation MRR of each name's runs, its seeds, in per cent."""
    runs: dict[str, list[dict[int, float]]] = {}
    for source in study.sources:
        logged = metric_log.read_metrics(source.workdir / metric_log.FILE)
        points = {line["step"]: 100 * line["validation/mrr"] for line in logged if "validation/mrr" in line}
        if not points:
            raise EndxError(f"{source.name}: {source.place} has no validation in {metric_log.FILE}")
        runs.setdefault(source.name, []).append(points)
    lines = {}
    for name, seeds in runs.items():
        steps = sorted(set.intersection(*map(set, seeds)))
        values = [[seed[step] for seed in seeds] for step in steps]
        lines[name] = {
            "steps": steps,
            "mean": rounded([statistics.fmean(at) for at in values]),
            "low": rounded([min(at) for at in values]),
            "high": rounded([max(at) for at in values]),
        }
    return {"lines": lines}


def draw_curves(data: dict):
    """Draws a line for each name, the mean of its seeds, and a band from the lowest to the highest."""
    figure, (axis,) = drawing.panels(1, columns=1, height=3.4 + 0.1 * len(data["lines"]))
    for name, line in data["lines"].items():
        (drawn,) = axis.plot(line["steps"], line["mean"], label=name)
        axis.fill_between(line["steps"], line["low"], line["high"], color=drawn.get_color(), alpha=0.15, linewidth=0)
    axis.set(xlabel="steps", ylabel="MRR of held-out articles (%)")
    axis.grid(True, axis="y")
    drawing.legend(figure, axis, 2)
    return figure
