"""Quality on answers shared by many questions: Figure 2 and Table 4 of ENDX (Wang et al. 2021)."""

import jax
import numpy as np

from endx_jax.data.records import RetrievalSet, questions_by_candidate
from endx_jax.data.splits import with_many_questions
from endx_jax.parallel.console import say
from endx_jax.retrieval.evaluate import MEASURES, evaluate
from reproduction.figures import style
from reproduction.figures.figure import Figure, rounded
from reproduction.figures.study import Source, Study, bar

POOLS = {"whole": "whole pool", "cut": "pool of these answers alone"}


METRIC = "mrr"
# The highest minimum; lower where no answer has so many questions.
MOST = 12


def data(study: Study) -> dict:
    """Computes each model's metric on each subset: ranked in the whole pool, and among the subset's answers."""
    study.distinct()
    most = max(map(len, questions_by_candidate(study.records.qrels).values()))
    minimums = range(1, min(MOST, most) + 1)
    parts = with_many_questions(study.records, minimums)
    sets = [(parts[f"answers>={n}"], parts[f"answers>={n}-alone"]) for n in minimums]
    return {
        "metric": METRIC,
        "minimum": list(minimums),
        "questions": [len(whole.questions) for whole, _ in sets],
        "answers": [len(alone.candidates) for _, alone in sets],
        "models": [_model(study, source, sets) for source in study.sources],
    }


def _model(study: Study, source: Source, sets: list[tuple[RetrievalSet, RetrievalSet]]) -> dict:
    """Computes one model's lines."""
    say(f"{source.name}: ranking {len(sets)} sub-sets")

    def values(part: RetrievalSet) -> np.ndarray:
        with bar("ranking") as progress:
            score, count = study.scores(source, part), len(part.candidates)
            ranks = evaluate(score, part.qrels, candidates=count, depth=1, progress=progress).ranks
        return np.asarray(jax.device_get(MEASURES[METRIC](ranks)), np.float64)

    found = dict(zip(study.records.question_ids, values(study.records), strict=True))
    of_sets = [np.asarray([found[name] for name in whole.question_ids]) for whole, _ in sets]
    return {
        "name": source.name,
        "whole": rounded([of_set.mean() for of_set in of_sets]),
        "standard_error": rounded([of_set.std() / np.sqrt(len(of_set)) for of_set in of_sets]),
        "cut": rounded([values(alone).mean() for _, alone in sets]),
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


FIGURE = Figure("a metric over the fewest questions an answer has, a line a model", data, draw)
