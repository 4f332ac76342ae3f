"""Training batches as a pure function of (seed, step), so that a run resumes exactly without saved iterator state."""

import copy
import dataclasses
import math
from collections.abc import Iterator, Mapping

import grain
import jax
import numpy as np

from endx_jax.batch import Batch, Texts, Tokens
from endx_jax.data.order import Epochs, Mixed, Sources
from endx_jax.data.packing import PackingPlan, Profile
from endx_jax.data.pairs import Pairs
from endx_jax.data.token_tables import TokenTable, VectorTable, padded_length
from endx_jax.errors import EndxError

# Multiple of padded widths in batches without packing; every new pair of widths is compiled.
LENGTH_STEP = 32
# Maximum numbers of steps and of pairs whose lengths determine the packings, and of pairs whose lengths are averaged.
PLANNED_STEPS, PLANNED_PAIRS, AVERAGED_PAIRS = 1000, 1 << 21, 1 << 20
# Pairs between releases of mapped files: each pair maps about 0.5 MB, as the system also maps pages around those read.
RELEASED_PAIRS = 4096
# Maximum known right answers of a question in a batch; if it has more, only those among the batch's answers are listed.
MOST_POSITIVES = 64
# Sides of a batch that hold texts.
TEXTS = ("question", "answer", "hard_negatives")


class BatchStream:
    """Batches of a training run; `stream[step]` is a pure function of the seed and the step.

    Each epoch contains every pair once, in a different order. A batch may contain the end of one epoch and the
    beginning of the next. Mixed sets have separate epochs and a share of the batches proportional to their weights.
    """

    def __init__(
        self,
        pairs: Pairs,
        *,
        seed: int,
        global_batch_size: int,
        rows: slice | np.ndarray | None = None,
        group_size: int = 1,
        mask_groups: bool = False,
        hard_negatives: int = 0,
        sources: Sources | None = None,
    ):
        """Prepares the order; no batch is made yet.

        Args:
          pairs: training pairs.
          seed: seed of the order.
          global_batch_size: B, pairs per step over all processes.
          rows: rows of each global batch that are on this process's devices; None for all.
          group_size: number of consecutive pairs of one group: see `epoch_order`.
          mask_groups: true if answers of one group are not negatives for each other's questions.
          hard_negatives: K, hard negatives per question.
          sources: how batches are drawn from several mixed sets; None for one set.

        Raises:
          EndxError: there are fewer than B pairs, or the requested groups or hard negatives are missing, or a source
            would never be drawn.
        """
        if len(pairs) < global_batch_size:
            raise EndxError(
                f"a global batch of {global_batch_size} pairs is larger than the training data, {len(pairs)} pairs; "
                + f"set train.global_batch_size to at most {len(pairs)}, or " * (len(pairs) > 1)
                + "use more data"
            )
        if group_size > 1 and pairs.groups is None:
            raise EndxError(
                f"data.group_size is {group_size}, but the training data has no groups, such as articles; set it to 1"
            )
        if hard_negatives and not len(pairs.hard_negatives.values):
            raise EndxError(f"data.hard_negatives is {hard_negatives}, but the training data has none; set it to 0")
        self.pairs = pairs
        self.rows = slice(0, global_batch_size) if rows is None else rows
        self.plan: PackingPlan | None = None
        self._seed, self._size, self._hard_negatives = seed, global_batch_size, hard_negatives
        self._masks = pairs.groups if mask_groups else None
        groups = None if pairs.groups is None else pairs.groups[pairs.index[:, 0]]
        if not pairs.sizes:
            self._order: Epochs | Mixed = Epochs(groups, len(pairs), run=group_size, seed=seed)
        else:
            sources = sources or Sources((1.0,) * len(pairs.sizes))
            sizes = pairs.sizes + (0,) * (len(sources.weights) - len(pairs.sizes))
            stretch = global_batch_size if sources.one_at_a_time else group_size
            self._order = Mixed(sizes, sources.shares(sizes), groups, run=group_size, stretch=stretch, seed=seed)

    def without_padding(self, steps: int, *, shards: int = 1, chunks: int = 1) -> "BatchStream":
        """Returns a stream of the same batches, packed.

        Args:
          steps: number of steps of the run.
          shards: number of parts of a batch over devices.
          chunks: number of chunks that a device encodes one after another.
        """
        stream = copy.copy(self)
        planned = min(steps, PLANNED_STEPS, max(16, PLANNED_PAIRS // self._size))
        sizes = [self._lengths(step) for step in range(planned)]
        stream.plan = PackingPlan.from_batches(
            sizes, {side: self._limit(side) for side in sizes[0]}, shards=shards, chunks=chunks, steps=steps
        )
        return stream

    def example_ids(self, step: int) -> np.ndarray:
        """Returns the rows of `pairs.index` in the global batch of `step`, int [B]."""
        return self._order(np.arange(step * self._size, (step + 1) * self._size))

    def __getitem__(self, step: int) -> Batch:
        """Returns this process's rows of the batch of `step`, with NumPy leaves.

        All processes know all lengths, so they agree on padded widths and packings without communication.
        """
        drawn = self._draw(step)
        lengths = drawn.lengths(self.pairs)
        if self.plan:
            packings: Profile = self.plan.choose(lengths)
            widths = {side: packing.width for side, packing in packings.items()}
        else:
            packings = {}
            widths = {
                side: padded_length(of_side.max(), self._limit(side), LENGTH_STEP) for side, of_side in lengths.items()
            }

        def texts(side: str, table: TokenTable | VectorTable, rows: np.ndarray) -> Texts:
            padded = table.pad(rows[self.rows], widths[side])
            return dataclasses.replace(padded, packing=packings.get(side)) if isinstance(padded, Tokens) else padded

        questions, answers = self.pairs.questions, self.pairs.answers
        question_id, answer_id = drawn.question_id[self.rows], drawn.answer_id[self.rows]
        hard: dict = {}
        if self._hard_negatives:
            hard["hard_negatives"] = texts("hard_negatives", answers, drawn.filled)
            hard["hard_negative_ids"] = drawn.hard_id[self.rows]
        return Batch(
            question=texts("question", questions, drawn.question_id),
            answer=texts("answer", answers, drawn.answer_id),
            question_id=question_id,  # type: ignore[arg-type]  # whole batches are moved to devices later
            answer_id=answer_id,  # type: ignore[arg-type]
            positive_ids=self._positives(question_id, np.append(drawn.answer_id, drawn.hard_id)),  # type: ignore[arg-type]
            group_id=None if self._masks is None else self._masks[question_id],
            **hard,
        )

    def shapes(self, widths: Mapping[str, int], packings: Profile | None = None) -> Batch:
        """Returns the shapes (`jax.ShapeDtypeStruct`) of a global batch with these widths and packings."""

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
        """Returns the batch shapes of the planned packings, except the last, which no planned step needs."""
        if not self.plan:
            return []
        return [
            self.shapes({side: packing.width for side, packing in profile.items()}, profile)
            for profile in self.plan.profiles[:-1]
        ]

    def typical(self) -> Batch:
        """Returns the shapes of a global batch whose texts have average length."""
        question, answer = self._mean_lengths()
        mean = {"question": question, "answer": answer, "hard_negatives": answer}
        return self.shapes({side: min(math.ceil(length), self._limit(side)) for side, length in mean.items()})

    def widest(self) -> Batch:
        """Returns the shapes of a padded global batch whose texts have maximum length."""
        return self.shapes({side: self._limit(side) for side in TEXTS})

    def iterate(self, start: int, stop: int, threads: int) -> Iterator[Batch]:
        """Yields the batches of steps [start, stop), prepared ahead by `threads` threads."""
        options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=4)
        return iter(grain.MapDataset.range(start, stop).map(self.__getitem__).to_iter_dataset(options))

    def _limit(self, side: str) -> int:
        return self.pairs.question_length if side == "question" else self.pairs.answer_length

    def _mean_lengths(self) -> tuple[float, float]:
        """Returns the mean lengths of the questions and answers of pairs, or of a sample of many pairs."""
        question_id, answer_id = self.pairs.index[:: -(-len(self.pairs) // AVERAGED_PAIRS)].T
        return (
            float(self.pairs.questions.length_of(question_id).mean()),
            float(self.pairs.answers.length_of(answer_id).mean()),
        )

    def _positives(self, question_id: np.ndarray, present: np.ndarray) -> np.ndarray:
        """Returns known right answers of questions [B], int32 [B, P], padded with -1.

        Of questions with more than `MOST_POSITIVES`, only those among the answers `present` in the batch are returned.
        """
        known = self.pairs.positives
        if known.width <= MOST_POSITIVES:
            return known[question_id]
        found = known.pad(question_id, MOST_POSITIVES)
        for n in np.flatnonzero(known.offsets[question_id + 1] - known.offsets[question_id] > MOST_POSITIVES):
            right = np.intersect1d(known.row(question_id[n]), present)[:MOST_POSITIVES]
            found[n] = np.pad(right, (0, MOST_POSITIVES - len(right)), constant_values=-1)
        return found

    def _lengths(self, step: int) -> dict[str, np.ndarray]:
        """Returns the lengths of the texts of a global batch by side."""
        return self._draw(step).lengths(self.pairs)

    def _read_pairs(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the question and answer rows of a global batch; periodically releases mapped pages."""
        if step % -(-RELEASED_PAIRS // self._size) == 0:
            self.pairs.release()
        question_id, answer_id = self.pairs.index[self.example_ids(step)].T
        return question_id, answer_id

    def _draw(self, step: int) -> "_Drawn":
        question_id, answer_id = self._read_pairs(step)
        hard_id = self._draw_hard_negatives(question_id, step)
        # Missing hard negatives have the id -1 and the text of the question's answer, which adds no width.
        return _Drawn(question_id, answer_id, hard_id, np.where(hard_id >= 0, hard_id, answer_id[:, None]))

    def _draw_hard_negatives(self, question_id: np.ndarray, step: int) -> np.ndarray:
        """Returns K hard negatives of each question without repetition, int32 [B, K], padded with -1."""
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
    """Rows of the tables in a global batch."""

    question_id: np.ndarray
    answer_id: np.ndarray
    hard_id: np.ndarray
    filled: np.ndarray

    def lengths(self, pairs: Pairs) -> dict[str, np.ndarray]:
        lengths = {
            "question": pairs.questions.length_of(self.question_id),
            "answer": pairs.answers.length_of(self.answer_id),
        }
        if self.filled.shape[1]:
            lengths["hard_negatives"] = pairs.answers.length_of(self.filled)
        return lengths
