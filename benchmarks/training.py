"""Training step of endx_jax on pairs, for cpu.py and gpu.py, and its settings for the peer's trainer.

Both fine-tune the same MiniLM weights on the same batches of SQuAD's (question, answer sentence) pairs in the same
order, with the same loss, precision, AdamW, clipping and schedule, and without dropout. A step is timed from a
tokenized batch in host memory to updated parameters.
"""

import argparse
import pathlib
import tempfile
from collections.abc import Sequence

import common
import jax
from peer_step import Recipe

from endx_jax.batch import Batch
from endx_jax.data.batches.collator import BatchStream
from endx_jax.experiment.compile_step import compile_and_restore
from endx_jax.experiment.run import prepare_run
from endx_jax.parallel.sharding import to_global
from endx_jax.pretrained.locate import locate

STEPS = 700  # length of the schedule, about an epoch at batch 128; of which a few are run


class OurStep:
    """Training step of endx_jax over the first batches of a run; each call uses the next one and returns its loss.

    Attributes:
      about: tokens computed over real tokens in both towers, and the texts of each batch.
    """

    def __init__(self, options: argparse.Namespace):
        """Prepares a run and its first `options.steps` batches."""
        config = configure(options)
        run = prepare_run(config, pathlib.Path(tempfile.mkdtemp()))
        plan, self._state, self._step = compile_and_restore(run.plan)
        self._mesh, stream = plan.mesh, plan.stream
        self._size = config.train.global_batch_size
        batches = [stream[step] for step in range(options.steps)]
        rows = [stream.pairs.index[stream.example_ids(step)] for step in range(len(batches))]
        texts = [[(run.data.train.questions[q], run.data.train.candidates[a]) for q, a in pairs] for pairs in rows]
        padding = _padding(batches, stream)
        self.about = {"padding": padding, "texts": texts}
        self._batches = iter(batches)

    def __call__(self) -> float:
        """Takes a step on the next batch."""
        batch = to_global(next(self._batches), self._mesh, self._size)
        self._state, metrics = self._step(self._state, batch)
        jax.block_until_ready(self._state)
        return float(metrics["loss"])


def _padding(batches: Sequence[Batch], stream: BatchStream) -> float:
    """Returns computed over real tokens; each shard and chunk of a batch computes all tokens of its packing."""
    parts = stream.plan.shards * stream.plan.chunks if stream.plan else 1
    room = 0
    for batch in batches:
        packings = [batch.packing] if batch.packing else [side.packing for side in batch.sides]
        room += sum(parts * x.tokens if x else side.mask.size for x, side in zip(packings, batch.sides, strict=False))
    return room / sum(int(side.mask.sum()) for batch in batches for side in batch.sides)


def configure(options: argparse.Namespace):
    """Returns the config of the run."""
    config = common.pairs_config(options)
    config.model.update(dtype=options.dtype, product_dtype=options.product_dtype)
    config.objective.mask_false_negatives = False
    config.objective.matryoshka_dims = tuple(options.matryoshka)
    config.train.update(steps=STEPS, tower_chunk=options.tower_chunk)
    return config


def recipe(config) -> Recipe:
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
