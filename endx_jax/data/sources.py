"""Data sets of a run: their sources, splits, and retrieval pools."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence

from endx_jax.data.formats import Data, ReadOptions, open_data, squad
from endx_jax.data.formats.format import Format
from endx_jax.data.formats.made import MADE
from endx_jax.data.formats.registry import PREPARED, records_of
from endx_jax.data.formats.row_files import FilePart
from endx_jax.data.sets.documents import Document
from endx_jax.data.sets.examples import Example
from endx_jax.data.sets.paragraphs import POOLS, split_sentences
from endx_jax.data.sets.records import Pools, RetrievalSet, RetrievalSetBuilder
from endx_jax.data.sets.splits import SPLITS, Splits, split_questions, take, without_questions
from endx_jax.data.settings import PARAGRAPHS, DataSettings
from endx_jax.errors import EndxError


@dataclasses.dataclass(frozen=True)
class Source:
    """Data set that a path names, and how it is read; see `find_source`.

    Attributes:
      data: data at the path.
      options: options of reading; the pool is empty for other data than reading comprehension.
      as_documents: true to read data as documents, whose titles or first sentences are the texts of the question tower.
    """

    data: Data
    options: ReadOptions
    as_documents: bool = False

    @property
    def path(self) -> str:
        """Local path of the data, or name of the set."""
        return self.data.path

    @property
    def format(self) -> Format | None:
        """Format of the data; None if they are read as documents."""
        return None if self.as_documents else self.data.format

    @property
    def is_file(self) -> bool:
        """True for files and folders, false for sets that are made or prepared."""
        return self.data.format not in (MADE, PREPARED)

    @property
    def pool(self) -> str:
        """Retrieval unit of reading-comprehension data, as `data.pool`; empty for other data."""
        return self.options.pool

    @property
    def split(self) -> str:
        """Split to evaluate: the requested one, or else the only one of a BEIR folder, or else `test`."""
        return self.options.split or self.data.format.default_split(self.data.place)

    def with_split(self, split: str) -> "Source":
        """Returns the source for a split."""
        return dataclasses.replace(self, options=dataclasses.replace(self.options, split=split))

    def sets(self) -> dict[str, "Source"]:
        """Returns the sets of a suite by name, each with its split; none if the data is no suite."""
        return {
            name: dataclasses.replace(self, data=open_data(path)).with_split(split)
            for name, (path, split) in self.data.sets(self.options.split).items()
        }

    def read(self, *, whole: bool = True) -> RetrievalSet:
        """Reads the set.

        With the pool `sentences` or `answers`, the set has all sentences as candidates: see `pools`. True for `whole`
        keeps the whole corpus of a BEIR folder.

        Raises:
          EndxError: the data can't be read.
        """
        if self.as_documents:
            return _pairs_of(self.data.documents(self.options))
        pool = "sentences" if self.pool in POOLS else self.pool
        return self.data.records(dataclasses.replace(self.options, whole=whole, pool=pool))

    def examples(self, part: FilePart | None = None) -> Iterator[Example]:
        """Yields the examples of a part of the data, or of all, merged."""
        if part is None:
            return self.read(whole=False).examples
        return self.data.examples(dataclasses.replace(self.options, part=part))


def find_source(
    path: str | Data,
    settings: DataSettings,
    split: str | None = None,
    *,
    data_format: str = "",
    strict: bool = False,
) -> Source:
    """Returns the data set at a path.

    Args:
      path: file, folder, `hf://datasets/OWNER/NAME`, or name of a data set that is prepared or made by a config file;
        or data that is open already.
      settings: settings of the data. The pool is left out if the set is not reading-comprehension data.
      split: split of a BEIR, MS MARCO or `save_to_disk` folder; None for the only one.
      data_format: as `data.format`; empty to detect it.
      strict: true to refuse a pool for data that is not reading comprehension.

    Raises:
      EndxError: there is no such data, or it can't have the pool.
    """
    data, options = path if isinstance(path, Data) else open_data(path), options_of(settings, split)
    if data_format or not data.has_units:
        if strict and settings.pool and data_format:
            raise EndxError(f"{data.path} is read as documents; leave data.pool empty")
        if strict and settings.pool:
            next(data.paragraphs(options))  # raises EndxError
        options = dataclasses.replace(options, pool="")
    return Source(data, options, bool(data_format))


def _pairs_of(passages: Iterable[Document]) -> RetrievalSet:
    """Returns passages as answers; the text for the question tower is the title, or else the first sentence."""
    texts = RetrievalSetBuilder()
    for passage in passages:
        start, end = next(iter(split_sentences(passage.text)), (0, None))
        title = str(passage.metadata.get("title") or passage.text[start:end])
        texts.add(title, [(passage.text, passage.name)])
    return texts.build()


def options_of(settings: DataSettings, split: str | None) -> ReadOptions:
    """Returns the options by which the data of a run are read."""
    return ReadOptions(
        split=split,
        pool=settings.pool,
        skip_invalid=settings.skip_invalid,
        question_column=settings.question_column or None,
        answer_column=settings.answer_column or None,
        text_column=settings.answer_column or None,
        settings=settings,
    )


def sources_of(settings: DataSettings) -> tuple[Source, Source | None]:
    """Returns the training data and the test data of a run; None for the latter if it is a share of the former.

    The test data is that of `data.test_path`, or else that beside the training data, as in a folder of SQuAD's files.

    Raises:
      EndxError: there is no such data, or it can't have the pool.
    """
    data, test_path = open_data(settings.path), settings.test_path
    if not settings.format and (parts := data.parts):
        if not settings.pool:
            raise EndxError(f"{settings.path} holds training and test data: set data.pool, or name one of them")
        data, test_path = open_data(parts[0]), test_path or parts[1]
    of_test = find_source(test_path, settings, settings.test_split) if test_path else None
    strict, form = not (of_test and of_test.pool), settings.format
    train = find_source(data, settings, settings.split, data_format=form, strict=strict)
    return train, of_test


def read_splits(settings: DataSettings) -> Splits:
    """Returns the train, validation and test sets of a run.

    Without separate test data, they are splits of one data set. Separate test data (`data.test_path`, or the dev file
    next to SQuAD's train file) is the whole test set, and its questions are removed from train and validation. With
    `data.merge`, the sets are splits of the questions of both files. `data.pool` applies to each file that is
    reading-comprehension data; the training data may have another format, such as mined negatives. The data sets of
    `data.mixture` are added to the train set, without held-out questions.

    With `data.tokens`, the train set is empty (see `tokens.stored`), and a share of the questions of `data.test_path`
    is the validation set.

    Raises:
      EndxError: `data.path` is not set, or the data can't be read.
    """
    if not settings.path:
        raise EndxError("data.path is not set: set a file or folder, or `docstrings` to try training without data")
    if settings.tokens:
        test = find_source(settings.test_path, settings, settings.test_split).read()
        return _held_out(test, settings)
    if settings.merge:
        splits = parted(_read_merged(settings), settings)
    else:
        source, of_test = sources_of(settings)
        records = source.read(whole=False)
        splits = _parted_from(records, of_test, settings) if of_test else parted(records, settings)
    if settings.mixture:
        held_out = {*splits.validation.questions, *splits.test.questions}
        sets = [splits.train]
        for part in settings.sets[1:]:
            records = find_source(part.path, settings, settings.split).read(whole=False)
            sets.append(without_questions(records, held_out).with_prompts(*part[2:]))
        splits = dataclasses.replace(splits, train=mix(sets))
    if settings.max_test_questions:
        splits = dataclasses.replace(splits, test=take(splits.test, settings.max_test_questions))
    return splits


def _read_merged(settings: DataSettings) -> RetrievalSet:
    """Reads both files of a SQuAD folder as one set of whole paragraphs."""
    files, options = squad.files_of(settings.path), options_of(settings, None)
    paragraphs = itertools.chain.from_iterable(open_data(file).paragraphs(options) for file in files)
    return records_of(paragraphs, files, settings.pool)


def _parted_from(records: RetrievalSet, of_test: Source, settings: DataSettings) -> Splits:
    """Returns the splits of training data with separate test data, whose questions are left out of the others."""
    test = of_test.read()
    rest = without_questions(records, set(test.questions))
    if not rest.questions:
        also = f"all its questions are in the test data {of_test.path} too"
        raise EndxError(f"{settings.path}: {also}; train on other questions")
    return dataclasses.replace(parted(rest, dataclasses.replace(settings, test_fraction=0.0)), test=test)


def mix(sets: Sequence[RetrievalSet]) -> RetrievalSet:
    """Merges sets into one whose `sources` name the sets of each question.

    Equal candidates are merged, and so are equal questions, with all their right candidates, so that no right answer
    of any set is a negative in a batch, and no right answer is a hard negative. Of several teachers' scores of a pair
    the first is kept, and of several grades the highest. Ids of the first set are kept; those of
    the others are prefixed with the set's number and a colon. If only some sets have groups, each question of the
    others is a group of its own.
    """
    merged = RetrievalSetBuilder()
    sources: dict[str, dict[int, None]] = {}
    grouped = any(records.groups is not None for records in sets)
    for number, records in enumerate(sets):
        prefix, texts = f"{number}:" if number else "", records.candidates
        for text, name in zip(texts, records.candidate_ids, strict=True):
            merged.candidate(text, prefix + name)
        for row, example in enumerate(records.examples):
            name = prefix + example.id
            merged.add(
                *example._replace(id=name, group=(example.group or f"question {name}") if grouped else None),
                grades=[records.grades[row][candidate] for candidate in records.qrels[row]] if records.grades else (),
                excluded=[texts[candidate] for candidate in records.excluded[row]] if records.excluded else (),
            )
            sources.setdefault(example.question, {})[number] = None
    mixed = merged.build(hard_negatives=any(records.hard_negatives is not None for records in sets))
    return dataclasses.replace(mixed, sources=tuple(tuple(sources[text]) for text in mixed.questions))


def _held_out(test: RetrievalSet, settings: DataSettings) -> Splits:
    """Returns validation and test sets with the pool of `data.test_path`, and an empty train set."""
    share = settings.validation_fraction
    validation = split_questions(test, validation=share, test=1 - share).validation
    held = set(validation.question_ids)
    rows = [row for row, name in enumerate(test.question_ids) if name not in held]
    if not rows:
        raise EndxError(f"{settings.test_path}: all questions are for validation; set data.validation_fraction=0")
    return Splits(test.subset([]), validation, test.select_questions(rows))


def parted(records: RetrievalSet, settings: DataSettings) -> Splits:
    """Returns the train, validation and test sets of one data set, by the shares of the settings."""
    records = dataclasses.replace(records, language=settings.language or records.text_language)  # of all texts
    shares = {"validation": settings.validation_fraction, "test": settings.test_fraction}
    return SPLITS["questions" if settings.merge else settings.held_out_by](records, **shares)


def pools(records: RetrievalSet, settings: DataSettings, pool: str | None = None) -> Pools:
    """Returns the retrieval pools of a set; the primary one is `pool`, by default `data.pool`.

    ReQA data has two pools: `answers`, the sentences that answer a question, and `sentences`, all of them. Other data
    has one pool of all candidates.
    """
    pool = settings.pool if pool is None else pool
    records = dataclasses.replace(records, language=settings.language or records.language)
    if pool in ("", PARAGRAPHS):
        return Pools({pool or "all": records})
    sets = {"answers": records.subset(range(len(records.questions)), hard_negatives=False), "sentences": records}
    return Pools({pool: sets[pool]} | sets)
