"""Training batches as a pure function of (seed, step): nothing to save in a checkpoint, exact resume anywhere."""

import copy
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import grain
import jax
import numpy as np

from endx_jax.batch import Batch, Texts, Tokens
from endx_jax.data.order import Epochs, Mixed
from endx_jax.data.packing import PackingPlan, Profile
from endx_jax.data.records import RetrievalSet, pad_ids
from endx_jax.data.tokenization import TokenTable, padded_length
from endx_jax.data.vector_table import VectorTable
from endx_jax.errors import EndxError

# Padded widths of batches without packings are multiples of this: each new pair of widths is another compilation.
LENGTH_STEP = 32
# The steps whose lengths are looked at to choose packings: all of most runs.
PLANNED_STEPS = 1000
# The sides of a batch that hold texts.
TEXTS = ("question", "answer", "hard_negatives")


class ReadsTexts(Protocol):
    """Turns the texts of one side into what batches hold of them."""

    @property
    def length(self) -> int:
        """The longest text, in tokens."""

    def __call__(self, texts: Sequence[str]) -> TokenTable | VectorTable:
        """Tokens or vectors of N texts."""


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Tokenised question-answer pairs; or pairs of vectors, where everything below the towers' heads is frozen.

    Attributes:
      questions: one row a distinct question.
      answers: one row a distinct candidate, in the same form.
      index: int32 [n, 2], the (question, answer) rows of each pair.
      positives: int32 [Q, P], each question's right answers, padded with -1.
      hard_negatives: int32 [Q, H], each question's hard negatives, padded with -1.
      groups: int32 [Q], equal where questions belong together; None where nothing says so.
      question_length: the longest padded question, in tokens.
      answer_length: the longest padded answer, in tokens.
      sources: int32 [n], where sets were mixed: the one that a row of `index` comes from, ascending; a pair that stands
        in several has a row for each. Else None.
    """

    questions: TokenTable | VectorTable
    answers: TokenTable | VectorTable
    index: np.ndarray
    positives: np.ndarray
    hard_negatives: np.ndarray
    groups: np.ndarray | None
    question_length: int
    answer_length: int
    sources: np.ndarray | None = None

    @classmethod
    def tokenize(cls, records: RetrievalSet, preparations: Mapping[str, ReadsTexts]) -> "Pairs":
        """Tokenises the questions and candidates of a retrieval set, and lists its right pairs.

        Args:
          records: the set.
          preparations: how texts of each side, `question` and `answer`, become tokens (`Preparation`), or vectors.
        """
        groups = None
        if records.groups is not None:
            number = {name: n for n, name in enumerate(dict.fromkeys(records.groups))}
            groups = np.asarray([number[name] for name in records.groups], np.int32)
        index, sources = np.asarray(records.pairs, np.int32).reshape(-1, 2), None
        if records.sources is not None:
            rows = [(source, row) for row, (question, _) in enumerate(index) for source in records.sources[question]]
            sources, kept = np.asarray(sorted(rows), np.int32).reshape(-1, 2).T
            index = index[kept]
        return cls(
            questions=preparations["question"](records.questions),
            answers=preparations["answer"](records.candidates),
            index=index,
            positives=pad_ids(records.qrels),
            hard_negatives=pad_ids(records.hard_negatives or ((),) * len(records.questions)),
            groups=groups,
            question_length=preparations["question"].length,
            answer_length=preparations["answer"].length,
            sources=sources,
        )

    def __len__(self) -> int:
        return len(self.index)

    def first(self, count: int) -> "Pairs":
        """The same tables with only the first `count` pairs to draw from."""
        return dataclasses.replace(self, index=self.index[:count])


class BatchStream:
    """The batches of a training run; `stream[step]` is a pure function of the seed and the step.

    Each epoch passes over every pair once, in an order of its own; batches run on from one epoch into the next. Where
    sets were mixed, each has epochs of its own, and as large a part of the batches as its weight says.
    """

    def __init__(
        self,
        pairs: Pairs,
        *,
        seed: int,
        global_batch_size: int,
        rows: slice | None = None,
        group_size: int = 1,
        hard_negatives: int = 0,
        weights: Sequence[float] = (),
    ):
        """Sets the order up; no batch is made yet.

        Args:
          pairs: what to draw from.
          seed: of the order.
          global_batch_size: B, pairs a step over all processes.
          rows: the rows of each global batch that this process supplies; None for all.
          group_size: pairs of one group that stand together: see `epoch_order`.
          hard_negatives: K, hard negatives a question.
          weights: of the sources that were mixed; none for pairs of one source.

        Raises:
          EndxError: when there are fewer than B pairs, or no groups or hard negatives where they are asked for, or when
            a source would never be drawn.
        """
        if len(pairs) < global_batch_size:
            raise EndxError(
                f"a global batch of {global_batch_size} pairs is larger than the training data, {len(pairs)} pairs; "
                f"set --config.train.global_batch_size to at most {len(pairs)}, or give more data"
            )
        if group_size > 1 and pairs.groups is None:
            raise EndxError(
                f"data.group_size is {group_size}, but the training data has no groups, as SQuAD's articles are; set 1"
            )
        if hard_negatives and not (pairs.hard_negatives >= 0).any():
            raise EndxError(f"data.hard_negatives is {hard_negatives}, but the training data names none; set 0")
        self.pairs = pairs
        self.rows = slice(0, global_batch_size) if rows is None else rows
        self.plan: PackingPlan | None = None
        self._seed, self._size, self._hard_negatives = seed, global_batch_size, hard_negatives
        groups = None if pairs.groups is None else pairs.groups[pairs.index[:, 0]]
        if pairs.sources is None:
            self._order: Epochs | Mixed = Epochs(groups, len(pairs), run=group_size, seed=seed)
        else:
            members = [np.flatnonzero(pairs.sources == number) for number in range(len(weights))]
            self._order = Mixed(members, weights, groups, run=group_size, seed=seed)

    def without_padding(self, steps: int, *, shards: int = 1, chunks: int = 1) -> "BatchStream":
        """The same batches, with a packing for each.

        Args:
          steps: of the run.
          shards: parts that a batch is split into over devices.
          chunks: parts that a device encodes one after another.
        """
        stream = copy.copy(self)
        sizes = [self._lengths(step) for step in range(min(steps, PLANNED_STEPS))]
        stream.plan = PackingPlan.of(
            sizes, {side: self._limit(side) for side in sizes[0]}, shards=shards, chunks=chunks, steps=steps
        )
        return stream

    def example_ids(self, step: int) -> np.ndarray:
        """Rows of `pairs.index` in the global batch of `step`, int [B]."""
        return self._order(np.arange(step * self._size, (step + 1) * self._size))

    def __getitem__(self, step: int) -> Batch:
        """This process's rows of the batch of `step`, with NumPy leaves.

        All processes know all lengths, so they agree on padded widths and packings without talking.
        """
        drawn = self._draw(step)
        lengths = drawn.lengths(self.pairs)
        if self.plan:
            packings: Profile = self.plan.choose(lengths)
            widths = {side: packing.width for side, packing in packings.items()}
        else:
            packings = {}
            widths = {side: padded_length(own.max(), self._limit(side), LENGTH_STEP) for side, own in lengths.items()}

        def texts(side: str, table: TokenTable | VectorTable, rows: np.ndarray) -> Texts:
            found = table.pad(rows[self.rows], widths[side])
            return dataclasses.replace(found, packing=packings.get(side)) if isinstance(found, Tokens) else found

        questions, answers = self.pairs.questions, self.pairs.answers
        question_id, answer_id = drawn.question_id[self.rows], drawn.answer_id[self.rows]
        hard: dict = {}
        if self._hard_negatives:
            hard["hard_negatives"] = texts("hard_negatives", answers, drawn.filled)
            hard["hard_negative_ids"] = drawn.hard_id[self.rows]
        return Batch(
            question=texts("question", questions, drawn.question_id),
            answer=texts("answer", answers, drawn.answer_id),
            question_id=question_id,  # type: ignore[arg-type]  # put on devices as a whole batch, later
            answer_id=answer_id,  # type: ignore[arg-type]
            positive_ids=self.pairs.positives[question_id],
            **hard,
        )

    def shapes(self, widths: Mapping[str, int], packings: Profile | None = None) -> Batch:
        """The shapes of a global batch (`jax.ShapeDtypeStruct`) whose sides are so wide and so packed."""

        def shape(array: np.ndarray) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((self._size, *array.shape[1:]), array.dtype)

        def widen(side: str) -> Texts | None:
            tokens = getattr(batch, side)
            if not isinstance(tokens, Tokens):
                return tokens
            wide = jax.tree.map(lambda x: jax.ShapeDtypeStruct((*x.shape[:-1], widths[side]), x.dtype), tokens)
            return dataclasses.replace(wide, packing=(packings or {}).get(side))

        batch = jax.tree.map(shape, self[0])
        return dataclasses.replace(batch, **{side: widen(side) for side in TEXTS})

    def profiles(self) -> list[Batch]:
        """The shapes of the packings that were planned for; empty without a plan.

        What has room for everything is left out: where all steps were planned for, none needs it.
        """
        if not self.plan:
            return []
        return [
            self.shapes({side: packing.width for side, packing in profile.items()}, profile)
            for profile in self.plan.profiles[:-1]
        ]

    def typical(self) -> Batch:
        """The shapes of a global batch whose texts are as long as they are on average."""
        question_id, answer_id = self.pairs.index.T
        mean = {
            "question": float(self.pairs.questions.lengths[question_id].mean()),
            "answer": float(self.pairs.answers.lengths[answer_id].mean()),
        }
        mean["hard_negatives"] = mean["answer"]
        return self.shapes({side: min(math.ceil(length), self._limit(side)) for side, length in mean.items()})

    def widest(self) -> Batch:
        """The shapes of a global batch, padded, whose texts are as long as they may be."""
        return self.shapes({side: self._limit(side) for side in TEXTS})

    def iterate(self, start: int, stop: int, threads: int) -> Iterator[Batch]:
        """Yields the batches of steps [start, stop), prepared ahead by `threads` threads."""
        options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=4)
        return iter(grain.MapDataset.range(start, stop).map(self.__getitem__).to_iter_dataset(options))

    def _limit(self, side: str) -> int:
        return self.pairs.question_length if side == "question" else self.pairs.answer_length

    def _lengths(self, step: int) -> dict[str, np.ndarray]:
        """The lengths of the texts of a global batch, by side."""
        return self._draw(step).lengths(self.pairs)

    def _draw(self, step: int) -> "_Drawn":
        question_id, answer_id = self.pairs.index[self.example_ids(step)].T
        hard_id = self._draw_hard_negatives(question_id, step)
        # Those that are missing are filled with the own answer, which costs no width, and have the id -1.
        return _Drawn(question_id, answer_id, hard_id, np.where(hard_id >= 0, hard_id, answer_id[:, None]))

    def _draw_hard_negatives(self, question_id: np.ndarray, step: int) -> np.ndarray:
        """Int32 [B, K]: K of each question's hard negatives without repetition, -1 where it has fewer."""
        if not self._hard_negatives:
            return np.zeros((len(question_id), 0), np.int32)
        known = self.pairs.hard_negatives[question_id]
        wanted = min(self._hard_negatives, known.shape[1])
        lots = np.random.default_rng([self._seed, step, 1]).random(known.shape)
        first = np.argsort(np.where(known >= 0, lots, 2.0), axis=1)[:, :wanted]
        drawn = np.take_along_axis(known, first, axis=1)
        return np.pad(drawn, ((0, 0), (0, self._hard_negatives - wanted)), constant_values=-1)


@dataclasses.dataclass(frozen=True)
class _Drawn:
    """The rows of the tables that make up a global batch."""

    question_id: np.ndarray
    answer_id: np.ndarray
    hard_id: np.ndarray
    filled: np.ndarray

    def lengths(self, pairs: Pairs) -> dict[str, np.ndarray]:
        found = {"question": pairs.questions.lengths[self.question_id], "answer": pairs.answers.lengths[self.answer_id]}
        if self.filled.shape[1]:
            found["hard_negatives"] = pairs.answers.lengths[self.filled]
        return found
