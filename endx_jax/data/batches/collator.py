"""Collator and stream of batches: a pure function of (seed, step), so that a run resumes without iterator state."""

import copy
import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import grain
import jax
import numpy as np

from endx_jax.batch import Batch, Tokens
from endx_jax.data.batches.packing import JOINT, MAX_PROFILES, PackingPlan, Profile
from endx_jax.data.batches.sampler import Drawn, Sampler
from endx_jax.data.batches.token_tables import Pairs, TokenTable, VectorTable, padded_length

# Multiple of padded widths in batches without packing; every new pair of widths is compiled.
LENGTH_STEP = 32
# Maximum numbers of steps and of pairs whose lengths determine the packings.
PLANNED_STEPS, PLANNED_PAIRS = 1000, 1 << 21
# Maximum number of pairs whose lengths are averaged.
AVERAGED_PAIRS = 1 << 20
# Maximum number of a question's known right answers that a batch lists; if it has more, see `Collator.positives`.
MOST_POSITIVES = 64

# Rows of this process in a global batch.
RowsOfProcess = slice | np.ndarray


class BatchSide(NamedTuple):
    """Texts of one side of a global batch.

    Attributes:
      table: table of texts.
      rows: their rows, int [B] or [B, K].
      present: bool, false for rows that stand in for missing texts; None if none is missing.
    """

    table: TokenTable | VectorTable
    rows: np.ndarray
    present: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class Collator:
    """Makes batches of questions, answers and hard negatives. Methods with other batches inherit from it.

    Attributes:
      pairs: training pairs.
    """

    pairs: Pairs

    @property
    def limits(self) -> dict[str, int]:
        """Maximum length of a text of each side, in tokens."""
        answer = self.pairs.answer_length
        return {"question": self.pairs.question_length, "answer": answer, "hard_negatives": answer}

    def mean_lengths(self) -> dict[str, float]:
        """Returns the mean length of a text of each side, over all pairs or a sample of many."""
        question_id, answer_id = self.pairs.index[:: -(-len(self.pairs) // AVERAGED_PAIRS)].T
        answer = float(self.pairs.answers.length_of(answer_id).mean())
        question = float(self.pairs.questions.length_of(question_id).mean())
        return {"question": question, "answer": answer, "hard_negatives": answer}

    def sides(self, drawn: Drawn) -> dict[str, BatchSide]:
        """Returns the texts of a global batch by side, the fields of the batch that hold them."""
        questions, answers = self.pairs.questions, self.pairs.answers
        sides = {"question": BatchSide(questions, drawn.question_id), "answer": BatchSide(answers, drawn.answer_id)}
        if drawn.hard_id.shape[1]:
            # Missing hard negatives have the id -1 and the text of the question's answer, which adds no width.
            present = drawn.hard_id >= 0
            filled = np.where(present, drawn.hard_id, drawn.answer_id[:, None])
            sides["hard_negatives"] = BatchSide(answers, filled, present)
        return sides

    def batch(
        self, drawn: Drawn, sides: Mapping[str, BatchSide], texts: Mapping[str, Any], rows: RowsOfProcess
    ) -> Batch:
        """Returns this process's rows of a batch, with NumPy leaves.

        Args:
          drawn: rows of the global batch.
          sides: result of `sides`.
          texts: padded texts of this process's rows by side.
          rows: this process's rows.
        """
        del sides
        question_id = drawn.question_id[rows]
        arrays: dict[str, Any] = {
            "question_id": question_id,
            "answer_id": drawn.answer_id[rows],
            "positive_ids": self.positives(question_id, drawn),
            "hard_negative_ids": drawn.hard_id[rows] if "hard_negatives" in texts else None,
        }
        return Batch(**texts, **arrays)

    def positives(self, question_id: np.ndarray, drawn: Drawn) -> np.ndarray:
        """Returns known right answers of questions [B], int32 [B, P], padded with -1.

        Of a question with more than `MOST_POSITIVES`, those in the global batch are returned, at most `MOST_POSITIVES`:
        hard negatives and answers of other questions, since `question_id` tells a question's own answers.
        """
        positives = self.pairs.positives
        if positives.width <= MOST_POSITIVES:
            return positives[question_id]
        padded = positives.pad(question_id, MOST_POSITIVES)
        for n in np.flatnonzero(positives.length_of(question_id) > MOST_POSITIVES):
            others = np.append(drawn.answer_id[drawn.question_id != question_id[n]], drawn.hard_id)
            right = np.intersect1d(positives.row(question_id[n]), others)[:MOST_POSITIVES]
            padded[n] = np.pad(right, (0, MOST_POSITIVES - len(right)), constant_values=-1)
        return padded


class BatchStream:
    """Batches of a training run; `stream[step]` is a pure function of the seed and the step.

    A `Sampler` draws the rows of a step, and a `Collator` makes a batch of them.
    """

    def __init__(self, pairs: Pairs, collator: Collator | None = None, *, rows: RowsOfProcess | None = None, **options):
        """Prepares the order; no batch is made yet.

        Args:
          pairs: training pairs.
          collator: maker of the batches; by default `Collator`.
          rows: rows of each global batch that are on this process's devices; None for all.
          **options: arguments of `Sampler`, of which `seed` and `global_batch_size` are required.

        Raises:
          EndxError: see `Sampler`.
        """
        self.pairs, self.sampler, self.collator = pairs, Sampler(pairs, **options), collator or Collator(pairs)
        self.rows = slice(0, self.sampler.global_batch_size) if rows is None else rows
        self.plan: PackingPlan | None = None

    def without_padding(
        self, steps: int, *, shards: int = 1, chunks: int = 1, joint: bool = False, most: int = MAX_PROFILES
    ) -> "BatchStream":
        """Returns a stream of the same batches, packed.

        Args:
          steps: number of steps of the run.
          shards: number of parts of a batch over devices.
          chunks: number of chunks that a device encodes one after another.
          joint: true if the texts of questions, answers and hard negatives are encoded as one batch.
          most: maximum number of packings for the steps whose lengths are known.
        """
        stream = copy.copy(self)
        planned = min(steps, PLANNED_STEPS, max(16, PLANNED_PAIRS // self.sampler.global_batch_size))
        drawn = (self.collator.sides(self.sampler(step)) for step in range(planned))
        sizes = [{name: side.table.length_of(side.rows) for name, side in sides.items()} for sides in drawn]
        limits = {name: self.collator.limits[name] for name in sizes[0]}
        if joint and len(limits) > 1:
            limits[JOINT] = max(limits.values())
        stream.plan = PackingPlan.from_batches(sizes, limits, shards=shards, chunks=chunks, steps=steps, most=most)
        return stream

    def example_ids(self, step: int) -> np.ndarray:
        """Returns the rows of `pairs.index` in the global batch of `step`, int [B]."""
        return self.sampler.example_ids(step)

    def __getitem__(self, step: int) -> Batch:
        """Returns this process's rows of the batch of `step`, with NumPy leaves.

        All processes know all lengths, so they agree on padded widths and packings without communication.
        """
        drawn = self.sampler(step)
        sides = self.collator.sides(drawn)
        lengths = {name: side.table.length_of(side.rows) for name, side in sides.items()}
        packings: Profile = self.plan.choose(lengths) if self.plan else {}
        limits, texts = self.collator.limits, {}
        for name, side in sides.items():
            packing = packings.get(name)
            width = packing.width if packing else padded_length(lengths[name].max(), limits[name], LENGTH_STEP)
            padded = side.table.pad(side.rows[self.rows], width)
            texts[name] = dataclasses.replace(padded, packing=packing) if isinstance(padded, Tokens) else padded
        batch = self.collator.batch(drawn, sides, texts, self.rows)
        return dataclasses.replace(batch, packing=packings[JOINT]) if JOINT in packings else batch

    def shapes(self, widths: Mapping[str, int], packings: Profile | None = None) -> Batch:
        """Returns the shapes (`jax.ShapeDtypeStruct`) of a global batch with these widths and packings."""
        size = self.sampler.global_batch_size
        batch = jax.tree.map(lambda array: jax.ShapeDtypeStruct((size, *array.shape[1:]), array.dtype), self[0])
        wide: dict = {"packing": packings[JOINT]} if packings and JOINT in packings else {}
        for name, width in widths.items():
            if name == JOINT:
                continue
            tokens = getattr(batch, name)
            if isinstance(tokens, Tokens):
                arrays: dict = {
                    field: jax.ShapeDtypeStruct((*array.shape[:-1], width), array.dtype)
                    for field, array in (("ids", tokens.ids), ("mask", tokens.mask))
                }
                wide[name] = dataclasses.replace(tokens, packing=(packings or {}).get(name), **arrays)
        return dataclasses.replace(batch, **wide)

    def profiles(self) -> list[Batch]:
        """Returns the batch shapes of the planned packings, except the last, which no planned step needs."""
        if not self.plan:
            return []
        return [
            self.shapes({side: packing.width for side, packing in profile.items()}, profile)
            for profile in self.plan.profiles[:-1]
        ]

    def typical(self) -> Batch:
        """Returns the shapes of a global batch whose texts have average length."""
        limits, mean = self.collator.limits, self.collator.mean_lengths()
        return self.shapes({side: min(math.ceil(length), limits[side]) for side, length in mean.items()})

    def widest(self) -> Batch:
        """Returns the shapes of a padded global batch whose texts have maximum length."""
        return self.shapes(self.collator.limits)

    def iterate(self, start: int, stop: int, threads: int) -> Iterator[Batch]:
        """Yields the batches of steps [start, stop), prepared ahead by `threads` threads."""
        options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=4)
        return iter(grain.MapDataset.range(start, stop).map(self.__getitem__).to_iter_dataset(options))
