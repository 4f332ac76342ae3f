"""Models, texts and measures that a figure is made from."""

import contextlib
import dataclasses
import functools
import pathlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tqdm

from endx_jax.data.readers.squad import files_of
from endx_jax.data.records import RetrievalSet, questions_by_candidate
from endx_jax.data.settings import DataSettings
from endx_jax.data.token_tables import content_key
from endx_jax.errors import EndxError
from endx_jax.experiment import workdir as workdirs
from endx_jax.experiment.data import has_paragraphs, pools, read_records, read_splits, settings_of
from endx_jax.experiment.workdir import read_config
from endx_jax.inference import EmbeddingModel, load
from endx_jax.inference.saved import MODEL
from endx_jax.parallel.console import say, showing_progress
from endx_jax.retrieval.bm25 import BM25
from endx_jax.retrieval.results import read_results
from endx_jax.retrieval.systems import dense_scores
from endx_jax.retrieval.vector_cache import VectorCache
from endx_jax.settings import check_choice

# The place that stands for the lexical baseline, which no folder holds.
LEXICAL = "bm25"


@contextlib.contextmanager
def bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Shows a progress bar on a terminal; yields a function of (questions done, all questions)."""
    with tqdm.tqdm(desc=what, unit="question", disable=not showing_progress(), leave=False) as shown:

        def progress(done: int, every: int) -> None:
            shown.total = every
            shown.update(done - shown.n)

        yield progress


@dataclasses.dataclass(frozen=True)
class Source:
    """One model in a figure.

    Attributes:
      name: its label in the figure.
      place: the workdir of a run, a pretrained folder or name, or `bm25`; some figures accept others.
    """

    name: str
    place: str

    @classmethod
    def parse(cls, text: str) -> "Source":
        """Parses `NAME=PLACE`, or a place alone, whose last part is then the name."""
        name, equals, place = text.partition("=")
        if not equals:
            name, place = pathlib.Path(text).name, text
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
        if not (folder / workdirs.CONFIG).is_file() or not (folder / MODEL).is_dir():
            raise EndxError(f"{self.name}: {self.place} is no workdir of a run; this figure needs runs")
        return folder


class Study:
    """Models and the texts they are compared on; texts are read and encoded on first use."""

    def __init__(self, sources: Sequence[Source], cache: pathlib.Path | None = None, data: str = "", pool: str = ""):
        """Initialises the study without reading anything.

        Args:
          sources: the models, at least one.
          cache: a folder that keeps encodings for the next figure; None keeps none.
          data: a file or folder that a reader knows; empty: the test split of the first run.
          pool: of data after ReQA, `answers` or `sentences`; empty: what the first run retrieves.
        """
        if not sources:
            raise EndxError("a figure needs at least one --run")
        self.sources = tuple(sources)
        self._cache = VectorCache(cache or "")
        self._data, self._pool = data, pool
        self._models: dict[str, EmbeddingModel] = {}

    @functools.cached_property
    def records(self) -> RetrievalSet:
        """Questions and the pool to rank."""
        settings = self._data_settings()
        if self._data:
            path = self._data
            if settings.pool and pathlib.Path(path).is_dir() and not has_paragraphs(path):
                path = files_of(path)[1]
            settings = settings_of(path, settings)
            records = read_records(path, settings, settings.test_split)
        else:
            records = read_splits(settings).test
        chosen = pools(records, settings).primary
        say(f"{len(chosen.questions):,} questions, {len(chosen.candidates):,} candidates")
        return chosen

    def distinct(self) -> None:
        """Raises EndxError if two sources have the same name, for figures that show each separately."""
        names = [source.name for source in self.sources]
        for name in names:
            if names.count(name) > 1:
                raise EndxError(f"two runs are called {name}; give each a name of its own: --run=NAME=WORKDIR")

    def embed(self, source: Source, side: str, texts: Sequence[str]) -> np.ndarray:
        """Encodes N texts with one side, `question` or `answer`: float32 [N, E], taken from the cache where they are.

        Of unit norm where the model compares by cosine, so that inner products are its similarities.
        """
        model = self.model(source)

        def encode() -> np.ndarray:
            say(f"encoding {len(texts):,} {side}s with {source.name}")
            return model.comparable(side, texts)

        key = content_key(texts, "embeddings", side, model.identity)
        shape = len(texts), model.encoder.width(model.params)
        return self._cache.vectors(key, shape, lambda: [encode()])

    def scores(self, source: Source, part: RetrievalSet) -> Callable[[int, int], np.ndarray]:
        """Returns a score function for `retrieval.evaluate` over a part of the records, or all of them.

        BM25 counts words in the part's candidates, as if there were no others.
        """
        if source.place == LEXICAL:
            return BM25.of_texts(part.candidates).score_block(part.questions)
        sides = (
            ("question", self.records.questions, part.questions),
            ("answer", self.records.candidates, part.candidates),
        )
        vectors = []
        for side, every, wanted in sides:
            row = {text: n for n, text in enumerate(every)}
            vectors.append(self.embed(source, side, every)[[row[text] for text in wanted]])
        return dense_scores(*vectors)

    def model(self, source: Source) -> EmbeddingModel:
        """Returns the model of a source, loaded once.

        Raises:
          EndxError: there is none, or it is `bm25`.
        """
        if source.place == LEXICAL:
            raise EndxError(f"{source.name} has no embeddings; this figure needs trained or pretrained models")
        if source.place not in self._models:
            say(f"loading {source.name}")
            self._models[source.place] = load(source.place)
        return self._models[source.place]

    def _data_settings(self) -> DataSettings:
        """Returns the data settings of the first run, or defaults if data are given and no source is a run."""
        for source in self.sources:
            if (pathlib.Path(source.place).expanduser() / workdirs.CONFIG).is_file():
                settings = read_config(source.workdir).data
                return dataclasses.replace(settings, pool=self._pool or settings.pool)
        if not self._data:
            raise EndxError("no --run is a workdir, whose test split would be taken: give --data")
        return DataSettings(pool=self._pool)


# What tells one evaluation of a system from another.
PARTS = ("dataset", "split", "pool", "direction")


def read_evaluations(source: Source) -> list[dict]:
    """Returns the evaluations of a run's training, then those of `endx evaluate`.

    Raises:
      EndxError: there are none, or a file of them is damaged.
    """
    workdir = source.workdir
    own = workdir / workdirs.RESULTS
    files = [own] if own.is_file() else []
    found = [
        entry
        for file in files + sorted((workdir / workdirs.EVALUATION).glob("*/results.json"))
        for entry in read_results(file)
    ]
    if not found:
        raise EndxError(f"{source.name}: {workdir} has no results yet; endx evaluate --workdir={workdir} makes them")
    return found


def metric_of(entry: dict, metric: str) -> float:
    """Returns one metric of an evaluation, a fraction.

    Raises:
      EndxError: it was not measured.
    """
    check_choice("the metric", metric, entry["metrics"])
    return entry["metrics"][metric]


def questions_of(qrels: Sequence[Sequence[int]], candidates: int) -> list[list[int]]:
    """Returns, for each candidate, the questions that it answers, in order."""
    asked = questions_by_candidate(qrels)
    return [asked.get(candidate, []) for candidate in range(candidates)]


def with_at_least(asked: Sequence[Sequence[int]], count: int) -> list[int]:
    """Returns the candidates with at least `count` questions.

    Raises:
      EndxError: there is none.
    """
    found = [candidate for candidate, questions in enumerate(asked) if len(questions) >= count]
    if not found:
        most = max(map(len, asked), default=0)
        raise EndxError(f"no answer has {count} questions, the most is {most}: give more questions, or ask for fewer")
    return found
