"""Does a model hold up where many questions share an answer? Figure 2 and Table 4 of ENDX (Wang et al. 2021)."""

import dataclasses

import jax
import numpy as np

from endx_jax.analysis import style
from endx_jax.analysis.figure import Figure
from endx_jax.analysis.judgements import questions_of, with_at_least
from endx_jax.analysis.projection import rounded
from endx_jax.analysis.study import Source, Study, bar
from endx_jax.errors import EndxError
from endx_jax.experiment.console import say
from endx_jax.retrieval.evaluate import MEASURES, evaluate
from endx_jax.settings import check_choice, key

POOLS = {"whole": "whole pool", "cut": "pool of these answers alone"}


@dataclasses.dataclass(frozen=True)
class Options:
    """What may be chosen."""

    metric: str = key("mrr", f"one of {', '.join(MEASURES)}")
    most: int = key(12, "the highest minimum; lower where no answer has so many questions")


def sub_sets(qrels, candidates: int, most: int) -> list[tuple[list[int], list[int]]]:
    """For each minimum from 1 the answers with at least so many questions: (rows of questions, answers).

    Args:
      qrels: for each question its right candidates.
      candidates: in the pool.
      most: the last minimum; the list is shorter where no answer has so many questions.
    """
    asked = questions_of(qrels, candidates)
    most = min(most, max(map(len, asked)))
    found = []
    for minimum in range(1, most + 1):
        answers = with_at_least(asked, minimum)
        found.append((sorted({row for answer in answers for row in asked[answer]}), answers))
    return found


def within(qrels, rows: list[int], answers: list[int]) -> list[list[int]]:
    """The judgements of those questions among those answers alone, numbered as in `answers`."""
    new = {answer: number for number, answer in enumerate(answers)}
    return [sorted(new[answer] for answer in qrels[row] if answer in new) for row in rows]


def data(study: Study, options: Options) -> dict:
    """The metric of every model on each sub-set: ranked in the whole pool, and among the sub-set's answers alone."""
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
    """One model's lines."""
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
    """A panel a way to rank: lines over the minimum, with a band of two standard errors in the whole pool."""
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
