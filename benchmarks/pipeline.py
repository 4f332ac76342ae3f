"""Pairs read per second, without a model: `python benchmarks/pipeline.py --data=FOLDER`.

tokenize: tokenizes all texts once; the peer is `__call__` of transformers' tokenizer.
batches: draws, pads and prefetches training batches of these tables; the peer is the data loader of
sentence-transformers' trainer, which tokenizes every batch in its collator, on the same pairs.

Each form runs in a process of its own, in alternation. Prints a table and, with --json=FILE, writes it with the machine
and the versions.
"""

import argparse
import collections
import functools
import os
from collections.abc import Callable

import common
import peer_trainer
import sides

from endx_jax.data import reqa
from endx_jax.data.batches.collator import BatchStream, Pairs
from endx_jax.data.formats import read, squad
from endx_jax.data.sets.records import RetrievalSet
from endx_jax.data.tokenization import TextProcessor, Tokenizer
from endx_jax.models.dual_encoder import SIDES
from endx_jax.pretrained import locate


def records_of(data: str) -> RetrievalSet:
    """Reads the training pairs of SQuAD's folder, or another file."""
    return reqa.from_squad(squad.files_of(data)[0]) if os.path.isdir(data) else read(data)


def tokenizing(options: argparse.Namespace) -> Callable[[], Pairs]:
    """Returns a function that tokenizes all texts and returns the pairs."""
    processor = TextProcessor(Tokenizer(locate(options.model)), options.length)
    return functools.partial(records_of(options.data).tokenize, dict.fromkeys(SIDES, processor))


def tokenize(options: argparse.Namespace) -> Callable[[], None]:
    """Returns a function that tokenizes all texts."""
    run = tokenizing(options)
    return lambda: run() and None


def read_batches(options: argparse.Namespace, batch: int, steps: int, threads: int) -> Callable[[], None]:
    """Returns a function that reads `steps` batches."""
    stream = BatchStream(tokenizing(options)(), seed=options.seed, global_batch_size=batch)
    return lambda: collections.deque(stream.iterate(0, steps, threads), maxlen=0) and None


def tables(options: argparse.Namespace, records: RetrievalSet, pairs: Pairs) -> list[dict]:
    """Measures tokenization; returns the rows of the table."""
    cases = {
        "tokenize": sides.Case("pipeline", "tokenize", (options,)),
    }
    if options.peer:
        texts = (str(locate(options.model)), options.length, list(records.questions), list(records.candidates))
        cases["tokenize, transformers"] = sides.Case("peer_trainer", "tokenize", texts)
    texts, tokens = len(records.questions) + len(records.candidates), len(pairs.questions.ids) + len(pairs.answers.ids)
    return _rows(cases, options, {"texts": texts, "pairs": len(pairs), "real_tokens": tokens}, "tokenize, transformers")


def batches(pairs: Pairs, records: RetrievalSet, batch: int, options: argparse.Namespace) -> list[dict]:
    """Measures reading batches of one size; returns the rows of the table."""
    steps = max(1, min(options.pairs, len(pairs)) // batch)
    cases = {
        f"batches of {batch:,}, {threads} threads": sides.Case(
            "pipeline", "read_batches", (options, batch, steps, threads)
        )
        for threads in (1, 2)
    }
    peer = f"batches of {batch:,}, sentence-transformers"
    if options.peer:
        texts = zip(*((records.questions[q], records.candidates[a]) for q, a in records.pairs), strict=True)
        job = peer_trainer.Job(str(locate(options.model)), *texts, batch, options.length, workers=options.workers)
        cases[peer] = sides.Case("peer_trainer", "read_batches", (job, steps))
    stream = BatchStream(pairs, seed=options.seed, global_batch_size=batch)
    real = pairs.index[[row for step in range(steps) for row in stream.example_ids(step)]]
    tokens = int(pairs.questions.lengths[real[:, 0]].sum() + pairs.answers.lengths[real[:, 1]].sum())
    return _rows(cases, options, {"pairs": steps * batch, "real_tokens": tokens}, peer)


def _rows(cases: dict, options: argparse.Namespace, work: dict[str, int], peer: str) -> list[dict]:
    timings = sides.alternate(cases, options.repeats)
    return [
        {
            "what": name,
            **{f"{unit}_per_second": count / timing.median for unit, count in work.items()},
            "seconds": timing.median,
            "first_seconds": timing.first,
            "to_peer": timings[peer].median / timing.median if options.peer else "",
        }
        for name, timing in timings.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder of SQuAD 1.1, or another file that a reader knows")
    parser.add_argument("--model", default="all-MiniLM-L6-v2", help="model whose tokenizer is used")
    parser.add_argument("--length", type=int, default=256, help="maximum tokens of a text")
    parser.add_argument("--batches", type=int, nargs="*", default=[128, 1024, 8192], help="pairs per batch")
    parser.add_argument("--pairs", type=int, default=16384, help="pairs read in each timed run")
    parser.add_argument("--peer", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--workers", type=int, default=0, help="processes of the peer's loader")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", default="")
    options = parser.parse_args()
    records, pairs = records_of(options.data), tokenizing(options)()
    results = tables(options, records, pairs)
    for batch in options.batches:
        results += batches(pairs, records, batch, options)
    print(common.table(results))
    packages = ("torch", "sentence-transformers", "datasets") if options.peer else ()
    versions = common.versions("tokenizers", "transformers", "grain", *packages)
    common.write(options.json, vars(options), results, versions=versions)


if __name__ == "__main__":
    main()
