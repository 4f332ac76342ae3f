"""Settings of data."""

import dataclasses

from endx_jax.data import reqa
from endx_jax.settings import check, check_choice, key

PARAGRAPHS = "paragraphs"
POOLS = (*reqa.POOLS, PARAGRAPHS)


@dataclasses.dataclass(frozen=True)
class DataSettings:
    """Where pairs come from and how they are cut. Held in `config.data`."""

    path: str = key(
        "docstrings",
        "a file or folder that a reader knows; `docstrings`, the built-in set; or, with a `pool`, a set of `endx "
        "prepare` such as `reqa/squad` or `reqa/squad:validation`, or a folder of SQuAD's train and dev files",
    )
    pool: str = key(
        "",
        "of reading-comprehension data (SQuAD, Natural Questions, MRQA, MultiReQA; `path`, `test_path` or both), what "
        "is retrieved, after ReQA: `answers`, the sentences that answer a question, or "
        "`sentences`, all of them; `paragraphs`, whole ones, equal questions counted apart, after RR; empty: whole "
        "paragraphs, equal questions merged",
    )
    mixture: tuple[tuple[str, float], ...] = key(
        (),
        "what is trained on beside `path`: (path, weight) of further sets, such as (('more.csv', 0.5),), of which so "
        "many pairs are drawn, on average, for one of `path`; the run is chosen by and reported on `path` as ever",
    )
    split: str = key("train", "which judgements of a BEIR or MS MARCO folder to train on")
    merge: bool = key(
        False,
        "of a folder of SQuAD, with pool=paragraphs: its train and dev files as one set, split by question, so that a "
        "paragraph may be in all three parts (RR, Tables 9 and 10)",
    )
    test_path: str = key("", "another file or folder to report on, whole; empty: `test_fraction` of `path`")
    test_split: str = key("test", "which judgements of a BEIR or MS MARCO folder to report on")
    question_column: str = key("question", "name of the questions' column in CSV, TSV and JSONL")
    answer_column: str = key("answer", "name of the answers' column in CSV, TSV and JSONL")
    question_length: int = key(64, "tokens a question is cut to, special tokens included")
    answer_length: int = key(256, "tokens an answer is cut to, special tokens included")
    validation_fraction: float = key(0.05, "share of the questions held out for choosing, in [0, 1)")
    test_fraction: float = key(0.1, "share of the questions held out for reporting, in [0, 1); without `test_path`")
    max_test_questions: int = key(0, "report on at most so many held-out questions and their pool; 0: all")
    max_train_pairs: int = key(0, "train on at most so many pairs; 0: all")
    group_size: int = key(
        1, "pairs that stand together in a batch and come from one group, such as an article; 1: drawn one by one"
    )
    hard_negatives: int = key(0, "K, hard negatives a question in each batch, drawn from those that the data name")
    reading_threads: int = key(2, "threads that prepare batches ahead", changes_results=False)
    cache: str = key(
        "~/.cache/endx_jax/data",
        "folder for token ids and for the pairs of `docstrings`, to start faster the next time; empty: none",
        changes_results=False,
    )

    def __post_init__(self):
        shortest = min(self.question_length, self.answer_length)
        check(
            shortest > 2, f"data.question_length and answer_length must exceed 2, the special tokens; one is {shortest}"
        )
        check(bool(self.path), "data.path is empty; give a file or folder, or `docstrings`")
        check_choice("data.pool", self.pool, ("", *POOLS))
        check(self.pool == PARAGRAPHS or not self.merge, "data.merge is for data.pool=paragraphs")
        check(not (self.merge and self.test_path), "data.merge makes one set of a folder; leave data.test_path empty")
        weighed = all(
            len(part) == 2
            and isinstance(part[0], str)
            and isinstance(part[1], int | float)
            and 0 < part[1] < float("inf")
            for part in self.mixture
        )
        check(weighed, f"data.mixture is {self.mixture!r}; give (path, weight) of each set, weights above 0")
        check(
            not (self.mixture and self.max_train_pairs), "data.max_train_pairs can't cut a data.mixture; leave out one"
        )
        check(self.group_size > 0, f"data.group_size is {self.group_size}; it must be positive")
        check(self.hard_negatives >= 0, f"data.hard_negatives is {self.hard_negatives}; it must not be negative")
