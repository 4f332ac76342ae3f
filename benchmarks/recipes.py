"""Recipes for pairs on many domains, each ranked on its own, beside sentence-transformers' defaults.

`python benchmarks/recipes.py DOMAINS OUTPUT --peer-python=PYTHON [--half=choose] [--candidate "NAME=RECIPE KEY=VALUE"]`

DOMAINS is a folder of JSON-lines files of pairs, as `domains.py` writes it. A domain is split by answers; by questions
where most of its questions are linked by common answers. All systems train on the same pairs, and rank the held-out
questions in one pool, the answers of both parts. Answers are cut at `--words` words, for all systems alike, so that
many trainings fit into hours of a CPU. The peer trains on all pairs, the recipes on about 93 % of them; the rest is
their validation set.

Each step writes its file at once and is skipped if that is there, so that the same command resumes. The table has the
MRR, nDCG@10 and recall@10 of the model alone and of the hybrid, as it would be served, each the mean over `--seeds`;
for the MRR with the difference from `--baseline`, its interval for other answers and their questions at a confidence of
95 % for all comparisons of the table together (Bonferroni), and the differences by seed.
"""

import argparse
import dataclasses
import json
import math
import pathlib
import subprocess
import sys
import time

import common
import numpy as np
from domains import DOMAINS
from scipy import stats

import endx_jax
from endx_jax.data.sets.records import RetrievalSet
from endx_jax.data.sets.splits import split, split_questions, take
from endx_jax.index.index_model import stored_hybrid
from endx_jax.metrics.significance import CONFIDENCE, Difference, paired_difference
from endx_jax.pretrained.locate import locate
from endx_jax.ranking.bm25 import BM25
from endx_jax.ranking.evaluate import evaluate_set

MODEL = "all-MiniLM-L6-v2"
UNTRAINED, PEER = "untrained", "sentence-transformers"
MEASURES = {"MRR": "mrr", "nDCG@10": "ndcg@10", "recall@10": "recall@10"}
TEST = 0.3  # share of a domain's questions
NEAR = 0.1  # distance of the share from TEST above which the domain is split by questions


@dataclasses.dataclass(frozen=True)
class Task:
    """Split of a domain.

    Attributes:
      name: name of the domain.
      held_out_by: what was held out, `answers` or `questions`.
      pairs: training pairs.
      test: held-out questions with the pool.
    """

    name: str
    held_out_by: str
    pairs: list[tuple[str, str]]
    test: RetrievalSet


def read_task(file: pathlib.Path, *, pairs: int, questions: int, pool: int, words: int) -> Task:
    """Returns the split of a domain, limited to numbers of pairs, test questions, answers and words of an answer."""
    rows = map(json.loads, file.read_text().rstrip("\n").split("\n"))
    whole = RetrievalSet.from_pairs((row["question"], " ".join(row["answer"].split(" ")[:words])) for row in rows)
    # A run holds out the lowest hashes for its validation, so the highest are held out here.
    held_out_by, parts = "answers", split(whole, validation=0.0, test=1 - TEST)
    if abs(len(parts.train.questions) / len(whole.questions) - TEST) > NEAR:
        held_out_by, parts = "questions", split_questions(whole, validation=0.0, test=1 - TEST)
    row_of = {name: row for row, name in enumerate(whole.question_ids)}
    number = {text: row for row, text in enumerate(whole.candidates)}
    kept = take(parts.train, questions)
    test = whole.select_questions([row_of[name] for name in kept.question_ids])
    train = take(parts.test, len(parts.test.questions))
    # Equal numbers of questions of every domain would be other numbers of pairs.
    chosen = [(train.questions[q], train.candidates[c]) for q, c in train.pairs][:pairs]
    right = [candidate for rows in test.qrels for candidate in rows]
    wanted = dict.fromkeys([*right, *(number[answer] for _, answer in chosen), *range(len(whole.candidates))])
    return Task(file.stem, held_out_by, chosen, test.with_pool(sorted([*wanted][: max(pool, len({*right}))])))


def minutes_file(target: pathlib.Path) -> pathlib.Path:
    """Returns the file of the minutes that the training of a folder took; the name may have dots, as in `lr3.5`."""
    return target.with_name(f"{target.name}.minutes")


def train(task: Task, system: str, recipe: list[str], target: pathlib.Path, seed: int, python: str) -> None:
    """Trains a system unless that is done; writes the minutes that its process took."""
    done = minutes_file(target)
    if done.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    file = target.parent / "pairs.jsonl"
    rows = ({"question": question, "answer": answer} for question, answer in task.pairs)
    file.write_text("\n".join(map(json.dumps, rows)) + "\n")
    if system == PEER:
        script = pathlib.Path(__file__).with_name("peer_recipe.py")
        command = [python, str(script), str(locate(MODEL)), str(file), str(target), str(seed)]
    else:
        name, *values = recipe
        command = [sys.executable, "-m", "endx_jax.main", f"--config={name}", f"--workdir={target}"]
        command += [f"--config.data.path={file}", "--config.data.test_fraction=0.0", f"--config.seed={seed}"]
        command += [f"--config.data.held_out_by={task.held_out_by}", *(f"--config.{value}" for value in values)]
    print("+", *command, flush=True)
    start = time.monotonic()
    subprocess.run(command, check=True)
    done.write_text(str((time.monotonic() - start) / 60))


def rank(task: Task, system: str, place: str, vectors: pathlib.Path) -> dict[str, dict[str, np.ndarray]]:
    """Returns all metrics of the test questions, [Q] each, by `alone` and `hybrid`; keeps vectors in a folder."""
    records, hybrid = task.test, stored_hybrid(place, cosine=True, language=task.test.text_language)
    lexical = BM25.of_texts(records.candidates, records.text_language).scaled_block(records.questions)
    if system == "bm25":
        return {"alone": evaluate_set(lexical, records).values}
    questions, candidates = common.encode(endx_jax.load(place), records, vectors)
    dense = lambda start, stop: questions[start:stop] @ candidates.T  # noqa: E731
    scorers = {"alone": dense, "hybrid": hybrid.score_block(dense, lexical)}
    return {column: evaluate_set(scores, records).values for column, scores in scorers.items()}


def over_runs(runs: list[dict[str, dict[str, np.ndarray]]]) -> dict[str, dict[str, np.ndarray]]:
    """Returns the values of runs of one system, by column and metric, as [runs, Q]."""
    return {
        column: {metric: np.stack([run[column][metric] for run in runs]) for metric in by}
        for column, by in runs[0].items()
    }


def difference(task: Task, before: np.ndarray, after: np.ndarray, comparisons: int) -> str:
    """Formats the difference of the means over runs of two systems, each [runs, Q], with its interval, in points."""
    clusters = [min(rows) for rows in task.test.qrels] if task.held_out_by == "answers" else []
    confidence = 1 - (1 - CONFIDENCE) / comparisons
    means = [values.mean(axis=0)[:, None] for values in (before, after)]
    (found,) = paired_difference(*means, clusters=clusters, confidence=confidence)
    return common.in_points(found)


def by_seed(before: np.ndarray, after: np.ndarray) -> str:
    """Formats the difference of two systems, each [runs, Q], in each of the runs, in points."""
    return ", ".join(f"{100 * found:+.1f}" for found in after.mean(axis=1) - before.mean(axis=1))


def mean_over_domains(differences: list[float]) -> str:
    """Formats the mean difference of domains with its 95 % interval for other domains by Student's t, in points."""
    mean, error = np.mean(differences), stats.sem(differences)
    low, high = stats.t.interval(CONFIDENCE, len(differences) - 1, mean, error)
    return common.in_points(Difference(mean, low, high, p=math.nan))


def main() -> None:
    """Trains and ranks what is missing, and prints the table."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("domains", type=pathlib.Path, help="folder of the pairs")
    options.add_argument("output", type=pathlib.Path, help="folder of all files")
    options.add_argument("--half", default="choose", help="choose, report or a comma-separated list of domains")
    options.add_argument("--candidate", action="append", default=[], help="NAME=RECIPE KEY=VALUE ...; may be repeated")
    about = "NAME=FOLDER of a model that is not trained; may be repeated"
    options.add_argument("--untrained", action="append", default=[], help=about)
    options.add_argument("--baseline", default=PEER, help="system with which the others are compared")
    options.add_argument("--peer-python", default=sys.executable, help="Python with sentence-transformers")
    options.add_argument("--pairs", type=int, default=600, help="most training pairs of a domain")
    options.add_argument("--questions", type=int, default=500, help="most test questions")
    options.add_argument("--pool", type=int, default=1500, help="most answers that are ranked")
    options.add_argument("--words", type=int, default=64, help="most words of an answer")
    options.add_argument("--seeds", type=int, nargs="+", default=[0], help="seeds of the trainings")
    options.add_argument("--rank-only", action="store_true", help="leave out what is not trained yet")
    options.add_argument("--json", type=pathlib.Path, help="file for the results")
    chosen = options.parse_args()
    recipes = {name: recipe.split() for name, _, recipe in (one.partition("=") for one in chosen.candidate)}
    recipes = recipes or {"minilm": ["minilm"]}
    untrained = {UNTRAINED: MODEL} | dict(one.partition("=")[::2] for one in chosen.untrained)
    systems = {"bm25": []} | {name: [] for name in untrained} | {PEER: []} | recipes
    limits = {name: getattr(chosen, name) for name in ("pairs", "questions", "pool", "words")}
    names = [name for name, one in DOMAINS.items() if chosen.half in (one.half, "all")] or chosen.half.split(",")
    found: dict[tuple[str, str], dict[str, dict[str, np.ndarray]]] = {}
    tasks: dict[str, Task] = {}
    minutes: dict[tuple[str, str], list[float]] = {}
    for name in names:
        task = tasks[name] = read_task(chosen.domains / f"{name}.jsonl", **limits)
        print(f"{name}: {len(task.pairs)} pairs, split by {task.held_out_by}; {task.test}", flush=True)
        for system, recipe in systems.items():
            folder, trained = chosen.output / name, system in (PEER, *recipes)
            places = [folder / f"{system}-seed{seed}" for seed in chosen.seeds] if trained else []
            if not chosen.rank_only:
                for place, seed in zip(places, chosen.seeds, strict=False):
                    train(task, system, recipe, place, seed, chosen.peer_python)
            if not all(minutes_file(place).exists() for place in places):
                continue
            minutes[name, system] = [float(minutes_file(place).read_text()) for place in places]
            places = places or [untrained.get(system, MODEL)]
            found[name, system] = over_runs([rank(task, system, str(place), folder / "vectors") for place in places])
            means = {column: round(100 * float(by["mrr"].mean()), 2) for column, by in found[name, system].items()}
            print(f"{name} {system}: {means}", flush=True)
    compared = [key for key in found if key[1] != chosen.baseline and (key[0], chosen.baseline) in found]
    count = max(1, sum(len(found[key]) for key in compared))
    rows = []
    for (name, system), columns in found.items():
        row: dict[str, object] = {
            "domain": name,
            "half": DOMAINS[name].half if name in DOMAINS else "",
            "system": system,
        }
        row["minutes"] = round(float(np.mean(minutes[name, system])), 1) if minutes[name, system] else ""
        for column, values in columns.items():
            for title, metric in MEASURES.items():
                row[f"{title} {column}"] = f"{100 * values[metric].mean():.2f}"
            base = found.get((name, chosen.baseline), {}).get(column)
            if base is not None and system != chosen.baseline:
                row[f"difference {column}"] = difference(tasks[name], base["mrr"], values["mrr"], count)
                if len(chosen.seeds) > 1:
                    row[f"difference {column} by seed"] = by_seed(base["mrr"], values["mrr"])
        rows.append(row)
    print(common.table(rows))
    english = [name for name in names if name not in DOMAINS or DOMAINS[name].language == "english"]
    means: dict[str, str] = {}
    differences: dict[tuple[str, str], list[float]] = {}
    for name, system in (key for key in compared if key[0] in english):
        base = found[name, chosen.baseline]
        for column, values in found[name, system].items():
            if column in base:
                gain = float(values["mrr"].mean() - base[column]["mrr"].mean())
                differences.setdefault((system, column), []).append(gain)
    for (system, column), gains in differences.items():
        if len(gains) > 1:
            mean = means[f"{system} {column}"] = mean_over_domains(gains)
            print(f"{system} - {chosen.baseline}, {column}, {len(gains)} English sets: {mean}")
    counts = {name: {"pairs": len(one.pairs), "split by": one.held_out_by} for name, one in tasks.items()}
    common.write(chosen.json, vars(chosen), rows, domains=counts, comparisons=count, means=means, seed=chosen.seeds)


if __name__ == "__main__":
    main()
