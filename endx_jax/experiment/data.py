"""Data of a run: reading of data sets, and train, validation and test splits."""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator

from endx_jax.data import cloze, made, reqa
from endx_jax.data.corpus import read_corpus
from endx_jax.data.documents import Document
from endx_jax.data.origins import ORIGINS
from endx_jax.data.readers import formats, read, squad
from endx_jax.data.records import Pools, RetrievalSet, mix
from endx_jax.data.settings import DOCUMENTS, PARAGRAPHS, DataSettings
from endx_jax.data.splits import SPLITS, Splits, split_questions, take, without_questions
from endx_jax.data.token_store import TokenStore
from endx_jax.errors import EndxError
from endx_jax.hub import local_path
from endx_jax.methods.config import load_config
from endx_jax.parallel.agreement import on_primary, several

RECIPES = {"docstrings": "quickstart"}  # recipes that make a data set, by the name of the set in `data.path`
PREPARED = ("reqa/", "multireqa/")  # prefixes of the names of data sets of `endx prepare`


def read_splits(settings: DataSettings) -> Splits:
    """Returns the train, validation and test sets.

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
        return _held_out(settings)
    splits = _split(settings)
    if settings.mixture:
        assert isinstance(splits.train, RetrievalSet)
        splits = dataclasses.replace(splits, train=mix([splits.train, *_mixture(settings, splits)]))
    if settings.max_test_questions:
        splits = dataclasses.replace(splits, test=take(splits.test, settings.max_test_questions))
    return splits


def ensure_prepared(paths: Iterable[str]) -> None:
    """Prepares missing data sets of `endx prepare` on the primary process, before several processes read them.

    A single process prepares a set when it reads it; several would all download it at once.
    """

    def ensure() -> None:
        for path in paths:
            name = name_and_split(path)[0]
            if name in ORIGINS:  # of others, reading raises the error
                from endx_jax.data import reqa_dataset

                reqa_dataset.ensure(name)

    if several():
        on_primary(ensure, "data-prepared")


def _held_out(settings: DataSettings) -> Splits:
    """Returns validation and test sets with the pool of `data.test_path`, and an empty train set."""
    test = read_records(settings.test_path, settings_of(settings.test_path, settings), settings.test_split)
    share = settings.validation_fraction
    validation = split_questions(test, validation=share, test=1 - share).validation
    held = set(validation.question_ids)
    rows = [row for row, name in enumerate(test.question_ids) if name not in held]
    if not rows:
        raise EndxError(f"{settings.test_path}: all questions are for validation; set data.validation_fraction=0")
    return Splits(test.subset([]), validation, test.select_questions(rows))


def _mixture(settings: DataSettings, splits: Splits) -> list[RetrievalSet]:
    """Reads the data sets of `data.mixture` and removes held-out questions."""
    held_out = {*splits.validation.questions, *splits.test.questions}
    records = []
    for source in settings.sets[1:]:
        part = read_records(source.path, settings_of(source.path, settings), settings.split, whole=False)
        part = without_questions(part, held_out)
        records.append(part.with_prompts(source.question_prompt, source.answer_prompt))
    return records


def _split(settings: DataSettings) -> Splits:
    if settings.merge:
        both = formats.read_unmerged(*squad.files_of(settings.path), skip_invalid=settings.skip_invalid)
        return split_questions(both, validation=settings.validation_fraction, test=settings.test_fraction)
    path, test_path = paths_of(settings)
    if not test_path:
        records = read_records(path, settings, settings.split, whole=False)
        return parted(records, settings)
    of_test = settings_of(test_path, settings)
    own = dataclasses.replace(settings, pool="") if settings.format else settings_of(path, settings)
    if settings.pool not in (own.pool, of_test.pool):
        own = settings  # `read_records` raises an error about the pool
    records = read_records(path, own, settings.split, whole=False)
    test = read_records(test_path, of_test, settings.test_split)
    rest = without_questions(records, set(test.questions))
    if not rest.questions:
        raise EndxError(f"{path}: all its questions are in the test data {test_path} too; train on other questions")
    return dataclasses.replace(parted(rest, dataclasses.replace(settings, test_fraction=0.0)), test=test)


def parted(records: RetrievalSet, settings: DataSettings) -> Splits:
    """Returns the train, validation and test sets of one data set, by the shares of the settings."""
    records = dataclasses.replace(records, language=settings.language or records.text_language)  # of all texts
    shares = {"validation": settings.validation_fraction, "test": settings.test_fraction}
    return SPLITS[settings.held_out_by](records, **shares)


def read_records(path: str, settings: DataSettings, judgements: str | None, *, whole: bool = True) -> RetrievalSet:
    """Reads one data set.

    Args:
      path: file, folder, `hf://datasets/OWNER/NAME`, or name of a data set that is prepared or made by a config file.
      settings: settings of the data. With the pool `sentences` or `answers`, all sentences are read: see `pools`.
      judgements: split of a BEIR, MS MARCO or `save_to_disk` folder; None for the only one.
      whole: true to keep the whole corpus of a BEIR folder: see `readers.read`.

    Raises:
      EndxError: the data can't be read, or `data.pool` is set for data without paragraphs.
    """
    if is_made(path):
        if settings.pool:
            raise EndxError(f"{path} is not reading-comprehension data; leave data.pool empty")
        return made.MAKERS[path](settings)
    if path.startswith(PREPARED):
        from endx_jax.data import reqa_dataset

        return reqa_dataset.read(*name_and_split(path))
    path = local_path(path)
    if settings.format == DOCUMENTS:
        if settings.pool:
            raise EndxError(f"{path} is read as documents; leave data.pool empty")
        documents = read_corpus(path, text_column=settings.text_column, split=judgements)
        return cloze.convert(documents, path, settings.cloze_sentences, settings.cloze_removal)
    if settings.pool == PARAGRAPHS:
        return formats.read_unmerged(path, skip_invalid=settings.skip_invalid)
    if settings.pool:
        return reqa.read(path, "sentences", skip_invalid=settings.skip_invalid)
    return read(
        path,
        split=judgements,
        question_column=settings.question_column,
        answer_column=settings.answer_column,
        whole=whole,
        skip_invalid=settings.skip_invalid,
    )


def read_documents(settings: DataSettings) -> Iterator[Document]:
    """Yields the whole passages of documents without questions."""
    return read_corpus(settings.path, text_column=settings.text_column, split=settings.split)


def pools(records: RetrievalSet, settings: DataSettings) -> Pools:
    """Returns the retrieval pools of a set; the primary one is that of `data.pool`.

    ReQA data has two pools: `answers`, the sentences that answer a question, and `sentences`, all of them. Other data
    has one pool of all candidates.
    """
    records = dataclasses.replace(records, language=settings.language or records.language)
    if settings.pool in ("", PARAGRAPHS):
        return Pools({settings.pool or "all": records})
    sets = {"answers": records.subset(range(len(records.questions)), hard_negatives=False), "sentences": records}
    return Pools({settings.pool: sets[settings.pool]} | sets)


def is_made(path: str) -> bool:
    """Returns true if `path` is the name of a data set that a function of a config file makes."""
    if path in RECIPES and path not in made.MAKERS:
        load_config(RECIPES[path])
    return path in made.MAKERS


def has_paragraphs(path: str) -> bool:
    """Returns true if `path` is reading-comprehension data, to which `data.pool` applies."""
    return not is_made(path) and (path.startswith(PREPARED) or formats.holds_paragraphs(local_path(path)))


def settings_of(path: str, settings: DataSettings) -> DataSettings:
    """Returns the settings for another data set than `data.path`, whose format is detected.

    The pool is left out if the set is not reading-comprehension data.
    """
    pool = settings.pool if settings.pool and has_paragraphs(path) else ""
    return dataclasses.replace(settings, pool=pool, format="")


def name_and_split(path: str) -> tuple[str, str]:
    """Returns name and split of a prepared data set such as `reqa/squad:validation`; the default split is `train`."""
    name, _, part = path.partition(":")
    return name, part or "train"


def paths_of(settings: DataSettings) -> tuple[str, str]:
    """Returns the paths of the training and test data; the second is empty if both are splits of one data set."""
    if settings.path.startswith(PREPARED) and settings.pool not in reqa.POOLS:
        raise EndxError(f"data.path={settings.path} needs data.pool, {' or '.join(reqa.POOLS)}")
    train, test = settings.path, ""
    if settings.format:
        return train, settings.test_path
    if train.startswith(PREPARED) and ":" not in train:
        train, test = f"{train}:train", f"{train}:validation"
    elif settings.pool and formats.holds_squad(train):
        train, test = squad.files_of(train)
    return train, settings.test_path or test


def fingerprint(records: RetrievalSet | TokenStore) -> str:
    """Returns the sha256 of all data that training reads: texts, judgements, groups, hard negatives and scores."""
    if isinstance(records, TokenStore):
        return records.sha256
    digest = hashlib.sha256()
    some = [part for part in (records.sources, records.scores) if part is not None]
    for part in (records.questions, records.candidates, records.qrels, records.groups, records.hard_negatives, *some):
        digest.update(json.dumps(part, ensure_ascii=False).encode())
    return digest.hexdigest()
