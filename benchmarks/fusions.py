"""Fusion of a model with BM25 on many domains: the default weight, and weights that validation questions choose.

`python benchmarks/fusions.py DOMAINS OUTPUT [--model=all-MiniLM-L6-v2] [--json=FILE]`

DOMAINS is a folder of JSON-lines files of pairs, as `domains.py` writes it. Questions are ranked against all answers
of their domain, up to `--pool`. The table has the MRR of BM25, of the model alone, and in hybrid search:

- `points`: cosine + 0.7 / 30 x BM25's score, the default of earlier versions.
- `default`: cosine + `WEIGHT` x BM25's score over the square root of the highest possible one.
- `fitted`: the weight of each half of the questions is fitted on the other half (`fit_fusion`), from 200 questions.

With `--validation=N,...` the table shows instead how much the weight that `fit_fusion` chooses by N random questions
gains over the default, for the other questions: the mean of 100 draws (the lowest; the share that leave the default).

Differences are from the model alone, and those of `default` and `fitted` also from the better of model and BM25, with
95 % intervals for other questions. Vectors are kept in OUTPUT, so that the same command does not encode again.
"""

import argparse
import dataclasses
import json
import pathlib

import common
import numpy as np
from domains import DOMAINS

import endx_jax
from endx_jax.data.sets.records import RetrievalSet
from endx_jax.data.sets.splits import limit_questions
from endx_jax.metrics.significance import paired_difference
from endx_jax.ranking.bm25 import BM25
from endx_jax.ranking.evaluate import evaluate_set
from endx_jax.ranking.hybrid import ENOUGH, GRID, Hybrid, fit_fusion

POINTS = 0.7 / 30
DRAWS = 100


def read(file: pathlib.Path, questions: int, pool: int, language: str) -> RetrievalSet:
    """Returns a domain with at most so many questions and answers; the right ones of the questions come first."""
    rows = map(json.loads, file.read_text().rstrip("\n").split("\n"))
    whole = limit_questions(RetrievalSet.from_pairs((row["question"], row["answer"]) for row in rows), questions)
    kept, right = [], dict[int, None]()
    for row, candidates in enumerate(whole.qrels):
        if len({*right, *candidates}) <= pool:
            kept.append(row)
            right |= dict.fromkeys(candidates)
    wanted = [*dict.fromkeys([*right, *range(len(whole.candidates))])][:pool]
    return dataclasses.replace(whole.select_questions(kept).with_pool(sorted(wanted)), language=language)


def fitted(dense, lexical, records: RetrievalSet) -> tuple[np.ndarray, list[float]]:
    """Returns reciprocal ranks at weights that the other half of the questions chooses, and these weights."""
    order = np.random.default_rng(0).permutation(len(records.questions))
    values, weights = np.zeros(len(order), np.float32), []
    for own, other in ((order[::2], order[1::2]), (order[1::2], order[::2])):
        part = records.select_questions(other.tolist())
        scorers = [lambda start, stop, rows=block[other]: rows[start:stop] for block in (dense, lexical)]
        hybrid = fit_fusion(*scorers, part, "mrr", cosine=True)
        mine = records.select_questions(own.tolist())
        scores = dense[own] + hybrid.weight * lexical[own]
        values[own] = evaluate_set(lambda start, stop, scores=scores: scores[start:stop], mine).values["mrr"]
        weights.append(hybrid.weight)
    return values, weights


def by_few(dense, lexical, records: RetrievalSet, counts: list[int]) -> dict[str, str]:
    """Returns the columns of `--validation`: gains of the weights that `DRAWS` random sets of questions choose."""
    values = {
        weight: evaluate_set(lambda start, stop, w=weight: (dense + w * lexical)[start:stop], records).values["mrr"]
        for weight in GRID
    }
    default = Hybrid().weight
    columns = {"default": f"{100 * values[default].mean():.1f}"}
    for count in counts:
        draw, gains, left = np.random.default_rng(0), [], 0
        for _ in range(DRAWS):
            order = draw.permutation(len(records.questions))
            own, other = order[:count], order[count:]
            scorers = [lambda start, stop, rows=block[own]: rows[start:stop] for block in (dense, lexical)]
            weight = fit_fusion(*scorers, records.select_questions(own.tolist()), "mrr", cosine=True).weight
            gains.append(100 * float((values[weight] - values[default])[other].mean()))
            left += weight != default
        columns[f"{count} questions"] = f"{np.mean(gains):+.2f} ({min(gains):+.2f}; {100 * left / DRAWS:.0f} %)"
    return columns


def difference(before: np.ndarray, after: np.ndarray) -> str:
    """Formats a difference in points with its interval."""
    (found,) = paired_difference(before[:, None], after[:, None])
    return common.in_points(found)


def main() -> None:
    """Ranks all domains and prints the table."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("domains", type=pathlib.Path, help="folder of the pairs")
    options.add_argument("output", type=pathlib.Path, help="folder of the vectors")
    options.add_argument("--model", default="all-MiniLM-L6-v2", help="model")
    options.add_argument("--questions", type=int, default=1000, help="most questions of a domain")
    options.add_argument("--pool", type=int, default=3000, help="most answers of a domain")
    options.add_argument(
        "--validation", default="", help="numbers of questions that choose a weight, instead of halves"
    )
    options.add_argument("--only", default=",".join(DOMAINS), help="comma-separated names of domains")
    options.add_argument("--json", type=pathlib.Path, help="file for the results")
    chosen = options.parse_args()
    model, rows = endx_jax.load(chosen.model), []
    for name in chosen.only.split(","):
        domain = DOMAINS[name]
        records = read(chosen.domains / f"{name}.jsonl", chosen.questions, chosen.pool, domain.language)
        questions, candidates = common.encode(model, records, chosen.output)
        dense, bm25 = questions @ candidates.T, BM25.of_texts(records.candidates, records.text_language)
        points, count = bm25.scores(records.questions), len(records.questions)
        lexical = np.asarray(bm25.scaled_block(records.questions)(0, count))
        row = {"domain": name, "half": domain.half, "questions": count, "answers": len(records.candidates)}
        if chosen.validation:
            counts = [*map(int, chosen.validation.split(","))]
            rows.append(row | by_few(dense, lexical, records, counts))
            print(common.table(rows[-1:]), flush=True)
            continue
        default = Hybrid().weight
        scores = {
            "BM25": points,
            "alone": dense,
            "points": dense + POINTS * points,
            "default": dense + default * lexical,
        }
        values = {
            system: evaluate_set(lambda start, stop, block=block: block[start:stop], records).values["mrr"]
            for system, block in scores.items()
        }
        weights: list[float] = []
        if count >= 2 * ENOUGH:
            values["fitted"], weights = fitted(dense, lexical, records)
        better = max(("alone", "BM25"), key=lambda system: values[system].mean())
        row |= {system: f"{100 * found.mean():.1f}" for system, found in values.items()}
        row |= {f"{one} - alone": difference(values["alone"], values[one]) for one in [*values][2:]}
        row |= {f"{one} - better": difference(values[better], values[one]) for one in [*values][3:]}
        rows.append(row | {"weights": ", ".join(f"{weight:g}" for weight in weights)})
        print(common.table(rows[-1:]), flush=True)
    print(common.table(rows))
    common.write(chosen.json, vars(chosen), rows)


if __name__ == "__main__":
    main()
