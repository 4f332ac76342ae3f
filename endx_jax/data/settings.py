"""Settings of the data."""

import dataclasses
import os
from typing import NamedTuple

from endx_jax.data.batches.sampler import Sources
from endx_jax.data.languages import LANGUAGES
from endx_jax.data.sets import paragraphs
from endx_jax.data.sets.splits import SPLITS
from endx_jax.settings import check_bounds, key, require

PARAGRAPHS = "paragraphs"
POOLS = (*paragraphs.POOLS, PARAGRAPHS)
MIXED, ONE_SET = "mixed", "one_set"
DOCUMENTS = "documents"


class TrainingSet(NamedTuple):
    """Training set of a mixture: its path, weight, and prompts of its questions and answers."""

    path: str
    weight: float = 1.0
    question_prompt: str = ""
    answer_prompt: str = ""


INF = float("inf")
# Settings of which only one may be set.
EXCLUSIVE = (
    ("format", "merge"),
    ("format", "tokens"),
    ("merge", "test_path"),
    ("mixture", "max_train_pairs"),
    ("tokens", "max_test_questions"),
)


@dataclasses.dataclass(frozen=True)
class DataSettings:
    """Settings of the data, `config.data`."""

    path: str = key(
        "",
        "Training data, which must be set: a file or folder of any supported format; `hf://datasets/OWNER/NAME`, a "
        "data set of the hub, or a folder in it; `docstrings`, which the quickstart makes, or a name in `DATA` of the "
        "config file; or, with `pool`, a set of `endx prepare` such as `reqa/squad` or `reqa/squad:validation`, or a "
        "folder with SQuAD's train and dev files.",
    )
    pool: str = key(
        "",
        "Retrieval unit for reading-comprehension data: `answers` (sentences that answer a question), `sentences` "
        "(all sentences; both as in ReQA) or `paragraphs` (whole paragraphs, with equal questions merged only if their "
        "ids are equal, as in RR). Empty: whole paragraphs, with equal questions merged.",
        choices=POOLS,
    )
    format: str = key(
        "",
        "Format of `path`: empty to detect it, or `documents`, a corpus as `endx encode` reads, for a method that "
        "needs no answers (embedding_distillation). `answer_column` is then the column of the text. Empty: `text` or a "
        "name that other tools use.",
        choices=(DOCUMENTS,),
    )
    mixture: tuple[tuple[str | float, ...], ...] = key(
        (),
        "Further training sets, as (path, weight) pairs such as (('more.csv', 0.5),). A set of weight w contributes w "
        "pairs, on average, for each pair of `path`. Validation and test use only `path`. A third and a fourth string "
        "are prompts of the set's questions and answers.",
    )
    mixture_temperature: float = key(
        0.0,
        "Temperature T of the sizes of mixed sets: the share of a set of n pairs is proportional to weight * n^(1/T), "
        "so 1 draws in proportion to size and larger values more equally. 0: the weights alone.",
        least=0,
        most=1e9,
    )
    mixture_batches: str = key(
        MIXED,
        "Sets in a batch of a mixture: `mixed`, or `one_set`, all pairs of a batch from one set, so that negatives are "
        "from the same set.",
        choices=(MIXED, ONE_SET),
    )
    tokens: str = key(
        "",
        "Folder of the tokenized training pairs, for data larger than memory. It is written when it is missing, and "
        "then only mapped into memory. Needs `test_path`; validation is a share of its questions.",
        changes_results=False,
    )
    tokenizing_processes: int = key(
        0, "Processes that tokenize files into `tokens`. 0: one for each CPU.", changes_results=False, least=0
    )
    split: str = key("train", "Split to train on, of a folder with several.")
    merge: bool = key(
        False,
        "Joins train and dev files of a SQuAD folder into one set, split by question, so that a paragraph may be in "
        "every split (RR, Tables 9 and 10). Needs pool=paragraphs.",
    )
    test_path: str = key("", "Test data: a file or folder. Empty: `test_fraction` of `path`.")
    test_split: str = key("test", "Split of the test data, of a folder with several.")
    question_column: str = key(
        "",
        "Name of the question column in CSV, TSV, JSON and Arrow, in any case. Empty: `question` or a name that other "
        "tools use, such as `query`.",
    )
    answer_column: str = key(
        "", "Name of the answer column, likewise. Empty: `answer` or a name that other tools use, such as `positive`."
    )
    skip_invalid: bool = key(
        False,
        "Skips invalid rows, such as those with an empty answer, and logs their number. Otherwise, and in "
        "documents (`format`), an invalid row is an error.",
    )
    language: str = key(
        "",
        "Language of the texts, by which BM25 splits them into words, such as `german`. Empty: detected; `none`: "
        "words are not stemmed.",
        choices=LANGUAGES,
        changes_results=False,
    )
    question_length: int = key(64, "Maximum tokens of a question, the two special tokens included.", least=3)
    answer_length: int = key(256, "Maximum tokens of an answer, the two special tokens included.", least=3)
    validation_fraction: float = key(0.05, "Share of the questions held out for validation.", least=0, below=1)
    test_fraction: float = key(
        0.1, "Share of the questions held out for testing. Unused with `test_path`.", least=0, below=1
    )
    held_out_by: str = key(
        "answers",
        "What is held out. answers: answers, or groups such as articles, with all their questions. questions: single "
        "questions, whose answers may be in the train set (ENDX, RR).",
        choices=SPLITS,
    )
    max_test_questions: int = key(0, "Maximum test questions; the pool contains only their answers. 0: all.", least=0)
    max_train_pairs: int = key(0, "Maximum training pairs. 0: all.", least=0)
    group_size: int = key(
        1,
        "Pairs drawn together from one group, such as an article, so that a batch holds harder negatives. 1: pairs "
        "are drawn one by one.",
        least=1,
    )
    hard_negatives: int = key(
        -1,
        "Hard negatives per question in each batch (K), drawn from those in the data. -1: 1 if the data has some, as "
        "triplets do, `pool` is empty, and the method takes them; else 0.",
        least=0,
        auto=-1,
    )
    reading_threads: int = key(2, "Threads that prepare batches ahead.", changes_results=False, least=0)
    cache: str = key(
        "~/.cache/endx_jax/data",
        "Folder of cached vectors of frozen encoders, and of `docstrings` pairs, with `$XDG_CACHE_HOME`, where set, in "
        "place of `~/.cache`. Empty: no cache.",
        changes_results=False,
    )

    def __post_init__(self):
        check_bounds(self, "data")
        for name, other in EXCLUSIVE:
            both = getattr(self, name) and getattr(self, other)
            require(not both, f"data.{name} can't be used with data.{other}; leave one empty")
        require(self.pool == PARAGRAPHS or not self.merge, "data.merge needs data.pool=paragraphs")
        weighed = all(
            2 <= len(part) <= 4
            and isinstance(part[1], int | float)
            and 0 < part[1] < INF
            and all(isinstance(text, str) for text in (part[0], *part[2:]))
            for part in self.mixture
        )
        require(
            weighed,
            f"data.mixture is {self.mixture!r}; it must hold (path, weight) pairs with weights above 0, each with "
            "at most two prompts",
        )
        require(
            not self.tokens or bool(self.test_path),
            "data.tokens needs data.test_path, since no questions of `data.path` are held out; set it",
        )

    @property
    def sets(self) -> tuple[TrainingSet, ...]:
        """Training sets: that of `path`, then those of `mixture`."""
        parts = (TrainingSet(str(path), float(weight), *map(str, rest)) for path, weight, *rest in self.mixture)
        return (TrainingSet(self.path), *parts)

    @property
    def corpus_flags(self) -> list[str]:
        """Flags of `endx encode` and `endx serve` that read the answers in `path` as training reads them."""
        given = {"question-column": self.question_column, "text-column": self.answer_column}
        # A local file has no splits.
        given["split"] = "" if os.path.isfile(os.path.expanduser(self.path)) else self.split
        return [f"--corpus={self.path}", *(f"--{name}={value}" for name, value in given.items() if value)]

    @property
    def sources(self) -> Sources:
        """How batches are drawn from `sets`."""
        weights = tuple(training_set.weight for training_set in self.sets)
        return Sources(weights, self.mixture_temperature, self.mixture_batches == ONE_SET)
