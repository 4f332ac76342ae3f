"""Models and texts that a figure is made from."""

import functools
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from endx_jax.data.sets.records import RetrievalSet, questions_by_candidate
from endx_jax.data.sources import pools, read_splits
from endx_jax.errors import EndxError
from endx_jax.experiment import workdir as workdirs
from endx_jax.inference import load
from endx_jax.parallel.console import say
from endx_jax.ranking.results import read_results


class FigureSource(NamedTuple):
    """One model in a figure: its label, and the workdir of its run or `FOLDER#SYSTEM` of measured layers."""

    name: str
    place: str

    @classmethod
    def parse(cls, text: str) -> "FigureSource":
        """Parses `NAME=PLACE`."""
        name, _, place = text.partition("=")
        if not (name and place):
            raise EndxError(f"--run={text} must be NAME=WORKDIR, such as --run=dual=runs/dual")
        return cls(name, place)

    @property
    def workdir(self) -> pathlib.Path:
        """Workdir of the run.

        Raises:
          EndxError: it is not the workdir of a run.
        """
        folder = pathlib.Path(self.place).expanduser()
        if not (folder / workdirs.CONFIG).is_file():
            raise EndxError(f"{self.name}: {self.place} is no workdir of a run; this figure needs runs")
        return folder

    def evaluations(self) -> list[dict]:
        """Returns the evaluations of the trained model in the run's results, those of the primary pool first."""
        return [entry for entry in read_results(self.workdir / workdirs.RESULTS) if entry["system"] == "trained"]


class Study:
    """Models of a figure and the texts they are compared on; texts are read and encoded on first use."""

    def __init__(self, sources: Sequence[FigureSource]):
        """Stores the models."""
        self.sources = tuple(sources)
        self.embed = functools.cache(self._embed)

    @functools.cached_property
    def records(self) -> RetrievalSet:
        """Questions and the pool of the first run's test split."""
        settings = workdirs.read_config(self.sources[0].workdir).data
        chosen = pools(read_splits(settings).test, settings).primary
        say(f"{len(chosen.questions):,} questions, {len(chosen.candidates):,} candidates")
        return chosen

    def _embed(self, source: FigureSource, side: str) -> np.ndarray:
        """Encodes all texts of one side, `question` or `answer`: float32 [N, E], whose inner products are compared."""
        texts = self.records.questions if side == "question" else self.records.candidates
        say(f"encoding {len(texts):,} {side}s with {source.name}")
        return load(source.workdir).comparable(side, texts)


def with_at_least(records: RetrievalSet, count: int) -> dict[int, list[int]]:
    """Returns the questions of each answer that has at least `count` of them.

    Raises:
      EndxError: there is none.
    """
    asked = questions_by_candidate(records.qrels)
    found = {answer: asked[answer] for answer in sorted(asked) if len(asked[answer]) >= count}
    if not found:
        most = max(map(len, asked.values()), default=0)
        raise EndxError(f"no answer has {count} questions, the most is {most}: give more questions")
    return found


def one_to_one(qrels: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Returns right pairs with each question and candidate at most once: the first question of each first answer."""
    first: dict[int, int] = {}
    for question, right in enumerate(qrels):
        first.setdefault(right[0], question)
    return [(question, candidate) for candidate, question in first.items()]
