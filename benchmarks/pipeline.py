"""Pairs read per second, without a model: `python benchmarks/pipeline.py --data=FOLDER`.

tokenise: tokenizes all texts once; the peer is `__call__` of transformers' tokenizer.
from the cache: reads the same tables from `data.cache`, including the hash of the texts.
batches: draws, pads and prefetches training batches of these tables; the peer is the data loader of
sentence-transformers' trainer, which tokenizes every batch in its collator, on the same pairs.

All forms run in alternation in this process. Prints a table and, with --json=FILE, writes it
with the machine and the versions.
"""

import argparse
import functools
import os
import tempfile

import common
import peer_trainer

from endx_jax.data import reqa
from endx_jax.data.batches import BatchStream, Pairs
from endx_jax.data.readers import read, squad
from endx_jax.data.records import RetrievalSet
from endx_jax.data.token_tables import TokenCache
from endx_jax.data.tokenization import TextProcessor, Tokenizer
from endx_jax.pretrained import locate


def tables(records: RetrievalSet, options: argparse.Namespace) -> tuple[list[dict], Pairs]:
    """Measures tokenization and the cache; returns the rows of the table, and the tokenized pairs."""
    folder, length = locate(options.model), options.length
    tokenizer = Tokenizer(folder)
    fresh, kept = (
        {side: TextProcessor(tokenizer, length, cache=cache) for side in ("question", "answer")}
        for cache in (None, TokenCache(tempfile.mkdtemp()))
    )
    cases = {
        "tokenise": functools.partial(Pairs.tokenize, records, fresh),
        "from the cache": functools.partial(Pairs.tokenize, records, kept),
    }
    if options.peer:
        cases["tokenise, transformers"] = functools.partial(_by_transformers, folder, length, records)
    pairs = cases["from the cache"]()  # fills the cache
    medians = _medians(cases, options.repeats)
    texts, tokens = len(records.questions) + len(records.candidates), len(pairs.questions.ids) + len(pairs.answers.ids)
    return [
        {
            "what": name,
            "texts_per_second": texts / seconds,
            "pairs_per_second": len(pairs) / seconds,
            "real_tokens_per_second": tokens / seconds,
            "seconds": seconds,
            "to_peer": medians["tokenise, transformers"] / seconds if options.peer else "",
        }
        for name, seconds in medians.items()
    ], pairs


def batches(pairs: Pairs, records: RetrievalSet, batch: int, options: argparse.Namespace) -> list[dict]:
    """Measures reading batches of one size; returns the rows of the table."""
    steps = max(1, min(options.pairs, len(pairs)) // batch)
    stream = BatchStream(pairs, seed=options.seed, global_batch_size=batch)
    cases = {f"batches, {threads} threads": functools.partial(_read, stream, steps, threads) for threads in (1, 2)}
    if options.peer:
        cases["batches, sentence-transformers"] = functools.partial(
            _read_loader, _loader(records, batch, options), steps
        )
    medians = _medians(cases, options.repeats)
    real = pairs.index[[row for step in range(steps) for row in stream.example_ids(step)]]
    tokens = int(pairs.questions.lengths[real[:, 0]].sum() + pairs.answers.lengths[real[:, 1]].sum())
    return [
        {
            "what": name,
            "batch": batch,
            "pairs_per_second": steps * batch / seconds,
            "real_tokens_per_second": tokens / seconds,
            "seconds": seconds,
            "to_peer": medians["batches, sentence-transformers"] / seconds if options.peer else "",
        }
        for name, seconds in medians.items()
    ]


def _medians(cases: dict, repeats: int) -> dict[str, float]:
    return {name: common.median(seconds) for name, seconds in common.alternate(cases, repeats).items()}


def _read(stream: BatchStream, steps: int, threads: int) -> None:
    for _ in stream.iterate(0, steps, threads):
        pass


def _read_loader(loader, steps: int) -> None:
    for _, _ in zip(range(steps), loader, strict=False):
        pass


def _loader(records: RetrievalSet, batch: int, options: argparse.Namespace):
    """Returns the peer's data loader of the same pairs."""
    questions, answers = zip(*((records.questions[q], records.candidates[a]) for q, a in records.pairs), strict=True)
    folder = str(locate(options.model))
    job = peer_trainer.Job(folder, questions, answers, batch, options.length, workers=options.workers)
    return peer_trainer.trainer(job).get_train_dataloader()


def _by_transformers(folder, length: int, records: RetrievalSet) -> None:
    for texts in (records.questions, records.candidates):
        _peer_tokenizer(folder)(list(texts), truncation=True, max_length=length, return_attention_mask=False)


@functools.cache
def _peer_tokenizer(folder):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, local_files_only=True)


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
    is_squad = os.path.isdir(options.data)
    records = reqa.read(squad.files_of(options.data)[0]) if is_squad else read(options.data)
    results, pairs = tables(records, options)
    for batch in options.batches:
        results += batches(pairs, records, batch, options)
    print(common.table(results))
    packages = ("torch", "sentence-transformers", "datasets") if options.peer else ()
    versions = common.versions("tokenizers", "transformers", "grain", *packages)
    common.write(options.json, vars(options), results, versions=versions)


if __name__ == "__main__":
    main()
