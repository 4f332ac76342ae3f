"""Pairs trained per second, compared with sentence-transformers: `python benchmarks/training.py --data=FOLDER`.

Both fine-tune the same MiniLM weights on the same batches of SQuAD's (question, answer sentence) pairs in the same
order, with the same loss, precision, AdamW, clipping and schedule, and without dropout. A step is timed from a
tokenized batch in host memory to updated parameters; `prepare_seconds` is the time to make the batch (for the peer with
tokenization). Each form runs in a process of its own, in alternation. Their losses on the first batch must agree.

Prints a table and, with --json=FILE, writes it with the machine and the versions.
"""

import argparse
import pathlib
import tempfile
import time
from collections.abc import Sequence

import common
import jax
import sides
from peer_step import NEEDED, PLAIN, Recipe

from endx_jax.batch import Batch
from endx_jax.cli.entry import use_large_pages
from endx_jax.data.batches.collator import BatchStream
from endx_jax.experiment.prepare import compile_and_restore, prepare_run
from endx_jax.parallel.sharding import to_global
from endx_jax.pretrained.locate import locate

OURS = "endx_jax"
STEPS = 700  # length of the schedule, about an epoch at batch 128; of which a few are run
TOLERANCE = {"float32": 1e-4, "bfloat16": 3e-2}  # largest difference of the first losses


class OurStep:
    """Training step of endx_jax over the first batches of a run; each call uses the next one and returns its loss.

    Attributes:
      about: seconds to prepare a batch, tokens computed over real tokens in both towers, and the texts of each batch.
    """

    def __init__(self, options: argparse.Namespace):
        """Prepares a run and its first batches."""
        config = configure(options)
        run, self._state, self._step = compile_and_restore(prepare_run(config, pathlib.Path(tempfile.mkdtemp())))
        self._run = run
        self._size = config.train.global_batch_size
        start = time.perf_counter()
        batches = [run.stream[step] for step in range(sides.calls(options.repeats))]
        seconds = time.perf_counter() - start
        rows = [run.stream.pairs.index[run.stream.example_ids(step)] for step in range(len(batches))]
        texts = [[(run.data.train.questions[q], run.data.train.candidates[a]) for q, a in pairs] for pairs in rows]
        padding = _padding(batches, run.stream)
        self.about = {"prepare_seconds": seconds / len(batches), "padding": padding, "texts": texts}
        self._batches = iter(batches)

    def __call__(self) -> float:
        """Takes a step on the next batch."""
        batch = to_global(next(self._batches), self._run.mesh, self._size)
        self._state, metrics = self._step(self._state, batch)
        jax.block_until_ready(self._state)
        return float(metrics["loss"])


def _padding(batches: Sequence[Batch], stream: BatchStream) -> float:
    """Returns computed over real tokens; each shard and chunk of a batch computes all tokens of its packing."""
    parts = stream.plan.shards * stream.plan.chunks if stream.plan else 1
    sides = [side for batch in batches for side in (batch.question, batch.answer)]
    room = sum(parts * side.packing.tokens if side.packing else side.mask.size for side in sides)
    return room / sum(int(side.mask.sum()) for side in sides)


def compare(options: argparse.Namespace) -> list[dict]:
    """Returns a row for endx_jax and one for each form of the peer."""
    cases = {OURS: sides.Case("training", "OurStep", (options,))}
    peers = [f"sentence-transformers, {form}" for form in options.peers]
    if peers:
        with sides.Side(cases[OURS]) as ours:
            texts = ours.about["texts"]
        recipe = _recipe(configure(options))
        for name, form in zip(peers, options.peers, strict=True):
            cases[name] = sides.Case("peer_step", "PeerStep", (recipe, form, texts))
    timings = sides.alternate(cases, options.repeats)
    check_same_work({name: timing.results[0] for name, timing in timings.items()}, TOLERANCE[options.dtype])
    fastest = min((timings[name].median for name in peers), default=None)
    return [
        {
            "step": name,
            "batch": options.batch,
            "pairs_per_second": options.batch / timing.median,
            "seconds": timing.median,
            "to_fastest_peer": fastest / timing.median if fastest else "",
            "start_up": timing.start_up,
            "first_step": timing.first,
            "padding": timing.about["padding"],
            "prepare_seconds": timing.about["prepare_seconds"],
            "first_loss": timing.results[0],
            "last_loss": timing.results[-1],
            "all_seconds": [round(time, 3) for time in timing.seconds],
        }
        for name, timing in timings.items()
    ]


def check_same_work(losses: dict[str, float], tolerance: float) -> None:
    """Ends the script if the losses of the first batch differ by more than the tolerance."""
    if max(losses.values()) - min(losses.values()) > tolerance:
        raise SystemExit(f"the first losses differ by more than {tolerance}, so the times are not comparable: {losses}")


def configure(options: argparse.Namespace):
    """Returns the config of the run."""
    config = common.pairs_config(options)
    config.model.dtype = options.dtype
    config.objective.mask_false_negatives = False
    config.objective.matryoshka_dims = tuple(options.matryoshka)
    config.train.update(steps=STEPS, tower_chunk=options.tower_chunk)
    return config


def _recipe(config) -> Recipe:
    """Returns the settings of the peer."""
    return Recipe(
        folder=str(locate(config.model.pretrained)),
        length=config.data.answer_length,
        batch=config.train.global_batch_size,
        temperature=config.objective.temperature,
        learning_rate=config.optimizer.learning_rate,
        weight_decay=config.optimizer.weight_decay,
        clip_norm=config.optimizer.clip_norm,
        steps=config.train.steps,
        bfloat16=config.model.dtype == "bfloat16",
        matryoshka=config.objective.matryoshka_dims,
    )


def arguments(description: str | None) -> argparse.ArgumentParser:
    """Returns a parser of the options that describe a training."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder of SQuAD 1.1, or another data.path")
    parser.add_argument("--model", default="all-MiniLM-L6-v2")
    parser.add_argument("--batch", type=int, default=128, help="pairs per step")
    parser.add_argument("--length", type=int, default=256, help="maximum tokens of a question or answer")
    parser.add_argument("--dtype", choices=TOLERANCE, default="float32")
    parser.add_argument("--tower_chunk", type=int, default=-1, help="value of train.tower_chunk")
    parser.add_argument(
        "--matryoshka",
        type=int,
        nargs="*",
        default=[],
        metavar="WIDTH",
        help="widths of the prefixes to train, both sides",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", default="")
    return parser


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument(
        "--peers",
        nargs="*",
        default=[PLAIN, "16", "32"],
        help=f"forms of sentence-transformers (pip install {NEEDED}): `{PLAIN}`, its plain in-batch loss, or a number, "
        "the mini-batch size of its cached loss; empty: no peer",
    )
    parser.add_argument("--repeats", type=int, default=3, help="number of timed steps, each with another batch")
    options = parser.parse_args()
    results = compare(options)
    print(common.table([{key: value for key, value in row.items() if key != "all_seconds"} for row in results]))
    packages = ("torch", "sentence-transformers", "transformers", "datasets", "accelerate") if options.peers else ()
    common.write(options.json, vars(options), results, versions=common.versions(*packages))


if __name__ == "__main__":
    use_large_pages()  # as `endx train` does; the peer inherits it
    main()
