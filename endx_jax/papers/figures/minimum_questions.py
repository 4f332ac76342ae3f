"""Quality on answers shared by many questions: Figure 2 and Table 4 of ENDX (Wang et al. 2021)."""

import dataclasses

import jax
import numpy as np

from endx_jax.errors import EndxError
from endx_jax.papers.figures import style
from endx_jax.papers.figures.figure import Figure, rounded
from endx_jax.papers.figures.study import Source, Study, bar, questions_of, with_at_least
from endx_jax.parallel.console import say
from endx_jax.retrieval.evaluate import MEASURES, evaluate
from endx_jax.settings import check_choice, key

POOLS = {"whole": "whole pool", "cut": "pool of these answers alone"}


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of the figure."""

    metric: str = key("mrr", f"metric: one of {', '.join(MEASURES)}")
    most: int = key(12, "largest minimum; lower if no answer has that many questions")


def sub_sets(qrels, candidates: int, most: int) -> list[tuple[list[int], list[int]]]:
    """Returns, for each minimum from 1, the answers with at least that many questions: (question rows, answers).

    Args:
      qrels: for each question its right candidates.
      candidates: in the pool.
      most: the largest minimum; the list is shorter if no answer has that many questions.
    """
    asked = questions_of(qrels, candidates)
    most = min(most, max(map(len, asked)))
    found = []
    for minimum in range(1, most + 1):
        answers = with_at_least(asked, minimum)
        found.append((sorted({row for answer in answers for row in asked[answer]}), answers))
    return found


def within(qrels, rows: list[int], answers: list[int]) -> list[list[int]]:
    """Returns the judgements of the given questions among the given answers, numbered as in `answers`."""
    new = {answer: number for number, answer in enumerate(answers)}
    return [sorted(new[answer] for answer in qrels[row] if answer in new) for row in rows]


def data(study: Study, options: Options) -> dict:
    """Computes each model's metric on each subset: ranked in the whole pool, and among the subset's answers."""
    study.distinct()
    check_choice("--metric", options.metric, MEASURES)
    if options.most < 1:
        raise EndxError(f"--most={options.most} must be at least 1")
    records = study.records
    sets = sub_sets(records.qrels, len(records.candidates), options.most)
    return {
        "metric": options.metric,
        "minimum": list(range(1, len(sets) + 1)),
        "questions": [len(rows) for rows, _ in sets],
        "answers": [len(answers) for _, answers in sets],
        "models": [_model(study, source, sets, options.metric) for source in study.sources],
    }


def _model(study: Study, source: Source, sets: list[tuple[list[int], list[int]]], metric: str) -> dict:
    """Computes one model's lines."""
    qrels, count = study.records.qrels, len(study.records.candidates)
    say(f"{source.name}: ranking {len(sets)} sub-sets")
    score = study.scores(source, range(len(qrels)), range(count))
    with bar("ranking the whole") as progress:
        ranks = evaluate(score, qrels, candidates=count, depth=1, progress=progress).ranks
    values = np.asarray(jax.device_get(MEASURES[metric](ranks)), np.float64)
    of_sets, cut = [values[rows] for rows, _ in sets], []
    for rows, answers in sets:
        score, judged = study.scores(source, rows, answers), within(qrels, rows, answers)
        cut.append(evaluate(score, judged, candidates=len(answers), depth=1).metrics[metric])
    return {
        "name": source.name,
        "whole": rounded([of_set.mean() for of_set in of_sets]),
        "standard_error": rounded([of_set.std() / np.sqrt(len(of_set)) for of_set in of_sets]),
        "cut": rounded(cut),
    }


def draw(data: dict):
    """Draws one panel for each way to rank, with a band of two standard errors for the whole pool."""
    figure, axes = style.panels(2, columns=2, height=3.1, sharey=True)
    x = np.asarray(data["minimum"])
    for axis, (pool, title) in zip(axes, POOLS.items(), strict=True):
        for number, model in enumerate(data["models"]):
            look, y = style.look(number), 100 * np.asarray(model[pool])
            axis.plot(x, y, label=model["name"], **look)
            if pool == "whole":
                error = 200 * np.asarray(model["standard_error"])
                axis.fill_between(x, y - error, y + error, color=look["color"], alpha=0.12, linewidth=0)
        counts = data["questions"] if pool == "whole" else data["answers"]
        what = "questions" if pool == "whole" else "answers"
        axis.set_xticks(x, [f"{n}\n{count:,}" if n % 2 else f"{n}\n" for n, count in zip(x, counts, strict=True)])
        axis.set(title=title, xlabel=f"fewest questions an answer has\n(below: {what} left)")
        axis.grid(True, axis="y")
    axes[0].set_ylabel(f"{style.metric_name(data['metric'])} (%)")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=min(len(data["models"]), 5))
    return figure


FIGURE = Figure("a metric over the fewest questions an answer has, a line a model", Options, data, draw)
