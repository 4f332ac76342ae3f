"""Data sets of a run: their splits and retrieval pools."""

import dataclasses
import functools
import itertools
from collections.abc import Sequence

from endx_jax.data.formats import Data, Format, ReadOptions, open_data, squad
from endx_jax.data.formats.registry import records_of
from endx_jax.data.sets.examples import texts_of
from endx_jax.data.sets.paragraphs import POOLS, split_sentences
from endx_jax.data.sets.records import Pools, RetrievalSet, RetrievalSetBuilder
from endx_jax.data.sets.splits import SPLITS, Splits, split_questions, take, without_questions
from endx_jax.data.settings import DOCUMENTS, PARAGRAPHS, DataSettings
from endx_jax.errors import EndxError
from endx_jax.settings import require


def find_data(
    path: str | Data,
    settings: DataSettings,
    split: str | None = None,
    *,
    data_format: str = "",
    strict: bool = False,
) -> Data:
    """Opens the data at a path with the reading options that the settings of a run give.

    If it is reading-comprehension data with the pool `sentences` or `answers`, all sentences are candidates: see
    `pools`. The texts for the question tower of data that is read as documents are titles or first sentences.

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
    options = ReadOptions(
        split=split,
        pool="sentences" if settings.pool in POOLS else settings.pool,
        skip_invalid=settings.skip_invalid,
        question_column=settings.question_column or None,
        answer_column=settings.answer_column or None,
        text_column=settings.answer_column or None,
        settings=settings,
    )
    data = dataclasses.replace(path if isinstance(path, Data) else open_data(path), options=options)
    if data.has_units and not data_format:
        return data
    if strict and settings.pool:
        if data_format:
            raise EndxError(f"{data.path} is read as documents; leave data.pool empty")
        next(data.paragraphs())  # raises EndxError
    data = data.with_options(pool="")
    if data_format:
        records = functools.partial(_pairs_of, data)
        data = dataclasses.replace(data, format=Format(DOCUMENTS, data.format.matches, records=records))
    return data


def _pairs_of(data: Data, *_) -> RetrievalSet:
    """Returns documents as answers; the text for the question tower is the title, or else the first sentence."""
    texts = RetrievalSetBuilder()
    for passage in data.documents():
        start, end = next(iter(split_sentences(passage.text)), (0, None))
        title = str(passage.metadata.get("title") or passage.text[start:end])
        texts.add(title, [(passage.text, passage.name)])
    return texts.build()


def data_of(settings: DataSettings) -> tuple[Data, Data | None]:
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
    of_test = find_data(test_path, settings, settings.test_split) if test_path else None
    strict = not (of_test and of_test.has_units)
    return find_data(data, settings, settings.split, data_format=settings.format, strict=strict), of_test


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
        return _held_out(find_data(settings.test_path, settings, settings.test_split).records(), settings)
    if settings.merge:
        files = squad.files_of(settings.path)
        paragraphs = itertools.chain.from_iterable(find_data(file, settings).paragraphs() for file in files)
        splits = parted(records_of(paragraphs, files, settings.pool), settings)
    else:
        data, of_test = data_of(settings)
        records = data.with_options(whole=False).records()
        splits = _parted_from(records, of_test, settings) if of_test else parted(records, settings)
    if settings.mixture:
        held_out = {*splits.validation.questions, *splits.test.questions}
        sets = [splits.train]
        for part in settings.sets[1:]:
            records = find_data(part.path, settings, settings.split).with_options(whole=False).records()
            sets.append(without_questions(records, held_out).with_prompts(*part[2:]))
        splits = dataclasses.replace(splits, train=mix(sets))
    if settings.max_test_questions:
        splits = dataclasses.replace(splits, test=take(splits.test, settings.max_test_questions))
    return splits


def _parted_from(records: RetrievalSet, of_test: Data, settings: DataSettings) -> Splits:
    """Returns the splits of training data with separate test data, whose questions are left out of the others."""
    test = of_test.records()
    rest = without_questions(records, set(test.questions))
    if not rest.questions:
        also = f"all its questions are in the test data {of_test.path} too"
        raise EndxError(f"{settings.path}: {also}; train on other questions")
    return dataclasses.replace(parted(rest, dataclasses.replace(settings, test_fraction=0.0)), test=test)


def mix(sets: Sequence[RetrievalSet]) -> RetrievalSet:
    """Merges sets into one whose `sources` name the sets of each right pair.

    Equal candidates are merged, and so are equal questions, with all their right candidates, so that no right answer
    of any set is a negative in a batch, and no right answer is a hard negative. Of several teachers' scores of a pair
    the first is kept, and of several grades the highest. Ids of the first set are kept; those of
    the others are prefixed with the set's number and a colon. If only some sets have groups, each question of the
    others is a group of its own.
    """
    merged = RetrievalSetBuilder()
    found: dict[tuple[str, str], tuple[int, ...]] = {}  # sets by question and right candidate
    grouped = any(records.groups is not None for records in sets)
    for number, records in enumerate(sets):
        prefix = f"{number}:" if number else ""
        for text, name in zip(records.candidates, records.candidate_ids, strict=True):
            merged.candidate(text, prefix + name)
        for row, example in enumerate(records.examples):
            name = prefix + example.id
            merged.add(
                *example._replace(id=name, group=(example.group or f"question {name}") if grouped else None),
                grades=[records.grades[row][candidate] for candidate in records.qrels[row]] if records.grades else (),
            )
            for key in ((example.question, text) for text in texts_of(example.right)):
                found[key] = tuple(dict.fromkeys((*found.get(key, ()), number)))
    mixed = merged.build(hard_negatives=any(records.hard_negatives is not None for records in sets))
    sources = tuple(
        {candidate: found[text, mixed.candidates[candidate]] for candidate in right}
        for text, right in zip(mixed.questions, mixed.qrels, strict=True)
    )
    return dataclasses.replace(mixed, sources=sources, own=sets[0])


def _held_out(test: RetrievalSet, settings: DataSettings) -> Splits:
    """Returns a validation set, a test set with the whole pool of `data.test_path`, and an empty train set."""
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
    validation, test = settings.validation_fraction, settings.test_fraction
    shares = f"{validation} and data.test_fraction={test}"
    require(validation + test < 1, f"data.validation_fraction={shares} leave nothing for training: lower one of them")
    divide = SPLITS["questions" if settings.merge else settings.held_out_by]
    return divide(records, validation=validation, test=test)


def pools(records: RetrievalSet, settings: DataSettings, data: Data | None = None) -> Pools:
    """Returns the retrieval pools of a set; the primary one is `data.pool`, unless the set's `data` has no such units.

    ReQA data has two pools: `answers`, the sentences that answer a question, and `sentences`, all of them. Other data
    has one pool of all candidates.
    """
    pool = settings.pool if data is None or data.has_units else ""
    records = dataclasses.replace(records, language=settings.language or records.language)
    if pool in ("", PARAGRAPHS):
        return Pools({pool or "all": records})
    sets = {"answers": records.subset(range(len(records.questions)), hard_negatives=False), "sentences": records}
    return Pools({pool: sets[pool]} | sets)
