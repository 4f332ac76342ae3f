"""Training batches as a pure function of (seed, step): nothing to save in a checkpoint, exact resume anywhere."""

import dataclasses
from collections.abc import Iterator

import grain
import numpy as np

from endx_jax.batch import Batch
from endx_jax.data.records import RetrievalSet
from endx_jax.data.tokenization import Tokenizer, TokenTable, padded_length
from endx_jax.errors import EndxError
from endx_jax.settings import check, key

# Padded widths of training batches are multiples of this: each new pair of widths is another compilation.
LENGTH_STEP = 32


@dataclasses.dataclass(frozen=True)
class DataSettings:
    """Where pairs come from and how they are cut. Held in `config.data`."""

    path: str = key("docstrings", "a file or folder that a reader knows, or `docstrings` for the built-in set")
    split: str = key("train", "which judgements of a BEIR folder to train on")
    test_path: str = key("", "another file or folder to report on, whole; empty: `test_fraction` of `path`")
    test_split: str = key("test", "which judgements of a BEIR folder to report on")
    question_column: str = key("question", "name of the questions' column in CSV, TSV and JSONL")
    answer_column: str = key("answer", "name of the answers' column in CSV, TSV and JSONL")
    question_length: int = key(64, "tokens a question is cut to, special tokens included")
    answer_length: int = key(256, "tokens an answer is cut to, special tokens included")
    validation_fraction: float = key(0.05, "share of the questions held out for choosing, in [0, 1)")
    test_fraction: float = key(0.1, "share of the questions held out for reporting, in [0, 1); without `test_path`")
    max_test_questions: int = key(0, "report on at most so many held-out questions and their pool; 0: all")
    max_train_pairs: int = key(0, "train on at most so many pairs; 0: all")
    reading_threads: int = key(2, "threads that prepare batches ahead", changes_results=False)

    def __post_init__(self):
        shortest = min(self.question_length, self.answer_length)
        check(
            shortest > 2, f"data.question_length and answer_length must exceed 2, the special tokens; one is {shortest}"
        )
        check(bool(self.path), "data.path is empty; give a file or folder, or `docstrings`")


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Tokenised question-answer pairs.

    Attributes:
      questions: one row a distinct question.
      answers: one row a distinct answer.
      index: int32 [n, 2], the (question, answer) rows of each pair.
      positives: int32 [Q, P], each question's right answers, padded with -1.
      question_length: the longest padded question, in tokens.
      answer_length: the longest padded answer, in tokens.
    """

    questions: TokenTable
    answers: TokenTable
    index: np.ndarray
    positives: np.ndarray
    question_length: int
    answer_length: int

    @classmethod
    def tokenize(cls, records: RetrievalSet, tokenizer: Tokenizer, settings: DataSettings) -> "Pairs":
        """Tokenises the questions and candidates of a retrieval set, and lists its right pairs."""
        most = max((len(right) for right in records.qrels), default=0)
        positives = np.full((len(records.qrels), max(most, 1)), -1, np.int32)
        for row, right in enumerate(records.qrels):
            positives[row, : len(right)] = right
        return cls(
            questions=tokenizer(records.questions, settings.question_length),
            answers=tokenizer(records.candidates, settings.answer_length),
            index=np.asarray(records.pairs, np.int32).reshape(-1, 2),
            positives=positives,
            question_length=settings.question_length,
            answer_length=settings.answer_length,
        )

    def __len__(self) -> int:
        return len(self.index)

    def first(self, count: int) -> "Pairs":
        """The same tables with only the first `count` pairs to draw from."""
        return dataclasses.replace(self, index=self.index[:count])


class BatchStream:
    """The batches of a training run; `stream[step]` is a pure function of the seed and the step.

    Each epoch passes over every pair once, in an order of its own; batches run on from one epoch into the next.
    """

    def __init__(self, pairs: Pairs, *, seed: int, global_batch_size: int, rows: slice | None = None):
        """Sets the order up; no batch is made yet.

        Args:
          pairs: what to draw from.
          seed: of the order.
          global_batch_size: B, pairs a step over all processes.
          rows: the rows of each global batch that this process supplies; None for all.

        Raises:
          EndxError: when there are fewer than B pairs.
        """
        if len(pairs) < global_batch_size:
            raise EndxError(
                f"a global batch of {global_batch_size} pairs is larger than the training data, {len(pairs)} pairs; "
                f"set --config.train.global_batch_size to at most {len(pairs)}, or give more data"
            )
        self.pairs = pairs
        self.rows = slice(0, global_batch_size) if rows is None else rows
        order = grain.MapDataset.range(len(pairs)).seed(seed).shuffle().repeat()
        self._order = order.batch(global_batch_size)
        self._batches = self._order.map(self._make)

    def example_ids(self, step: int) -> np.ndarray:
        """Rows of `pairs.index` in the global batch of `step`, int [B]."""
        return self._order[step]

    def __getitem__(self, step: int) -> Batch:
        """This process's rows of the batch of `step`, padded to the longest of the *global* batch; NumPy leaves."""
        return self._batches[step]

    def iterate(self, start: int, stop: int, threads: int) -> Iterator[Batch]:
        """Yields the batches of steps [start, stop), prepared ahead by `threads` threads."""
        options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=4)
        return iter(self._batches.slice(slice(start, stop)).to_iter_dataset(options))

    def _make(self, examples: np.ndarray) -> Batch:
        pairs = self.pairs
        question_id, answer_id = pairs.index[examples].T
        # All processes know all lengths, so they agree on the padded shape without talking.
        question_length = padded_length(pairs.questions.lengths[question_id].max(), pairs.question_length, LENGTH_STEP)
        answer_length = padded_length(pairs.answers.lengths[answer_id].max(), pairs.answer_length, LENGTH_STEP)
        question_id, answer_id = question_id[self.rows], answer_id[self.rows]
        return Batch(
            question=pairs.questions.pad(question_id, question_length),
            answer=pairs.answers.pad(answer_id, answer_length),
            question_id=question_id,
            answer_id=answer_id,
            positive_ids=pairs.positives[question_id],
        )
