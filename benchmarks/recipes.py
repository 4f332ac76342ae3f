"""Recipes for pairs on two domains, each ranked on both, beside sentence-transformers' defaults.

`python benchmarks/recipes.py --squad=FOLDER --other=FOLDER --teacher=FOLDER --output=runs/recipes`

SQuAD trains on every 43rd paragraph of its train file, the other domain (`dev.json.gz` and `test.json.gz` of SQuAD's
format, such as PolicyQA) on every second paragraph of its dev file, about 2,000 pairs each. Every fourth paragraph
of SQuAD's dev file and the other domain's test file are ranked, in the pool `answers`. All systems train on the same
pairs, those of `endx mine` with seven hard negatives by the untrained model and the teacher's scores, which only
`distill` reads. Settings are the recipes' own; the peer has the trainer's defaults and its in-batch loss.

Prints for each system the minutes of a training and MRR on both domains, by the model alone and in a hybrid with BM25,
in the mean over seeds, from two seeds on each with the 95 % interval of the difference from the untrained model, for
other seeds and articles or, below 30 of them, answers (`interval_over_runs`). Finished steps are skipped, so the same
command resumes.
"""

import argparse
import gzip
import json
import pathlib
import statistics
import subprocess
import sys
import time

import common
import numpy as np

from endx_jax.experiment.comparison import SystemResults, read_per_question

MODEL = "all-MiniLM-L6-v2"
RECIPES = ("minilm", "pairs", "distill")
PEER = "sentence-transformers"


def sample(source: pathlib.Path, every: int, target: pathlib.Path) -> None:
    """Writes every N-th paragraph of a gzipped file in SQuAD's format."""
    articles, number = json.loads(gzip.decompress(source.read_bytes()))["data"], 0
    for article in articles:
        kept = []
        for paragraph in article["paragraphs"]:
            if number % every == 0:
                kept.append(paragraph)
            number += 1
        article["paragraphs"] = kept
    target.write_text(json.dumps({"version": "1.1", "data": [one for one in articles if one["paragraphs"]]}))


def once(done: pathlib.Path, *command: str) -> None:
    """Runs a command unless its last output is there."""
    if not done.exists():
        print("+", *command, flush=True)
        subprocess.run(command, check=True)


def train_peer(mined: pathlib.Path, target: pathlib.Path, seed: int) -> None:
    """Trains the peer on the pairs of a mined set, with the defaults of its trainer, and saves the model."""
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer import losses

    from endx_jax.pretrained.locate import locate

    texts = {}
    for name in ("queries", "corpus"):
        rows = map(json.loads, (mined / f"{name}.jsonl").read_text().splitlines())
        texts[name] = {row["_id"]: row["text"] for row in rows}
    judged = [line.split("\t")[:2] for line in (mined / "qrels" / "train.tsv").read_text().splitlines()[1:]]
    model = SentenceTransformer(str(locate(MODEL)))
    SentenceTransformerTrainer(
        model=model,
        args=SentenceTransformerTrainingArguments(
            output_dir=str(target) + "-trainer", seed=seed, save_strategy="no", report_to="none", disable_tqdm=True
        ),
        train_dataset=Dataset.from_dict(
            {
                "question": [texts["queries"][question] for question, _ in judged],
                "answer": [texts["corpus"][answer] for _, answer in judged],
            }
        ),
        loss=losses.MultipleNegativesRankingLoss(model),
    ).train()
    model.save(str(target))


def train(system: str, mined: pathlib.Path, target: pathlib.Path, seed: int) -> float:
    """Trains a system if it is missing; returns the minutes that its process took."""
    clock = target.with_suffix(".minutes")
    if not clock.exists():
        start = time.monotonic()
        if system == PEER:
            command = [sys.executable, __file__, f"--train-peer={mined}", f"--output={target}", f"--seed={seed}"]
        else:
            command = [sys.executable, "-m", "endx_jax.main", f"--config={system}", f"--workdir={target}"]
            command += [f"--config.data.path={mined}", "--config.data.test_fraction=0.0", f"--config.seed={seed}"]
            if not mined.name.startswith("squad"):  # PolicyQA's questions are all linked by common answers
                command.append("--config.data.held_out_by=questions")
        subprocess.run(command, check=True)
        clock.write_text(str((time.monotonic() - start) / 60))
    return float(clock.read_text())


def rank(system: str, place: str, test: pathlib.Path, folder: pathlib.Path) -> list[SystemResults]:
    """Ranks a test file unless that is done; returns the results of the model and of the hybrid."""
    flag, name = ("workdir", "trained") if system in RECIPES else ("model", pathlib.Path(place).name)
    done = folder / "results.json"
    once(done, "endx", "evaluate", f"--{flag}={place}", f"--data={test}", "--pool=answers", f"--output={folder}")
    return [read_per_question(folder, one) for one in (name, "hybrid")]


def main() -> None:
    """Trains and ranks what is missing, and prints the table."""
    sys.path.append(str(pathlib.Path(__file__).parents[1]))  # `reproduction` is not installed
    from reproduction.significance import interval_over_runs

    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--squad", type=pathlib.Path, help="folder of SQuAD's gzipped files")
    options.add_argument("--other", type=pathlib.Path, help="folder of the other domain's gzipped files")
    options.add_argument("--teacher", help="model whose scores are distilled")
    options.add_argument("--output", type=pathlib.Path, required=True, help="folder of all files")
    options.add_argument("--seeds", type=int, default=1, help="runs of each system")
    options.add_argument("--json", type=pathlib.Path, help="file for the results")
    options.add_argument("--train-peer", type=pathlib.Path, help=argparse.SUPPRESS)
    options.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.train_peer:
        train_peer(chosen.train_peer, chosen.output, chosen.seed)
        return
    chosen.output.mkdir(parents=True, exist_ok=True)
    files = {
        "squad": (chosen.squad / "train-v1.1.json.gz", 43, chosen.squad / "dev-v1.1.json.gz", 4),
        "other": (chosen.other / "dev.json.gz", 2, chosen.other / "test.json.gz", 1),
    }
    tests = {}
    for domain, (source, every, test, of_test) in files.items():
        pairs, tests[domain] = (chosen.output / f"{domain}-{part}.json" for part in ("train", "test"))
        sample(source, every, pairs)
        sample(test, of_test, tests[domain])
        mined = chosen.output / f"{domain}-mined"
        mine = ["mine", f"--data={pairs}", "--pool=answers", f"--model={MODEL}", "--negatives=7"]
        once(mined / "mining.json", "endx", *mine, f"--score-with={chosen.teacher}", f"--output={mined}")
    systems = {("untrained", ""): [MODEL]} | {
        (system, domain): [str(chosen.output / f"{system}-{domain}-seed{seed}") for seed in range(chosen.seeds)]
        for domain in files
        for system in (*RECIPES, PEER)
    }
    rows, untrained = [], {}
    for (system, domain), places in systems.items():
        row = {"system": system, "trained on": domain, "minutes": 0.0}
        if domain:
            mined = chosen.output / f"{domain}-mined"
            minutes = [train(system, mined, pathlib.Path(place), seed) for seed, place in enumerate(places)]
            row["minutes"] = round(statistics.mean(minutes), 1)
        for ranked, test in tests.items():
            runs = []
            for place in places:
                folder = chosen.output / "ranked" / f"{pathlib.Path(place).name if domain else system}-{ranked}"
                runs.append(rank(system, place, test, folder))
            for column, results in zip((ranked, f"{ranked}, hybrid"), zip(*runs, strict=True), strict=True):
                found = np.stack([one.values[:, one.metrics.index("mrr")] for one in results])
                row[column] = f"{100 * found.mean():.2f}"
                gains = found - untrained.setdefault(column, found)
                if len(gains) > 1:
                    low, high = 100 * interval_over_runs(gains[:, :, None], clusters=results[0].clusters)[:, 0]
                    row[column] += f" ({low:+.1f} to {high:+.1f})"
        rows.append(row)
    print(common.table(rows))
    common.write(chosen.json, vars(chosen), rows, versions=common.versions("sentence-transformers", "torch"))


if __name__ == "__main__":
    main()
