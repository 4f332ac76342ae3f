"""Reads the data that a config names, and cuts it into what is trained on, chosen by and reported."""

import dataclasses
import hashlib
import json
import os

from endx_jax.data import reqa
from endx_jax.data.docstrings import docstring_pairs
from endx_jax.data.readers import read, squad
from endx_jax.data.records import RetrievalSet
from endx_jax.data.settings import PARAGRAPHS, DataSettings
from endx_jax.data.splits import Splits, split, split_questions, take, without_questions
from endx_jax.errors import EndxError

# Sets that need no file, by what `data.path` calls them.
BUILT_IN = {"docstrings": docstring_pairs}
# Sets that are prepared once (`endx prepare`) begin with this.
PREPARED = "reqa/"


def read_splits(settings: DataSettings) -> Splits:
    """Train, validation and test sets.

    Without a test set of its own the three share out one source. With one (`test_path`, or the dev file beside
    SQuAD's train file) the test set is the whole of that, pool included, and questions that stand in it are neither
    trained on nor chosen by. With `data.merge` they share out the questions of both files.
    """
    cut = _split(settings)
    if settings.max_test_questions:
        cut = dataclasses.replace(cut, test=take(cut.test, settings.max_test_questions))
    return cut


def _split(settings: DataSettings) -> Splits:
    if settings.merge:
        both = squad.read_unmerged(*squad.files_of(settings.path))
        return split_questions(both, validation=settings.validation_fraction, test=settings.test_fraction)
    path, test_path = _paths(settings)
    records = read_records(path, settings, settings.split)
    if test_path:
        test = read_records(test_path, settings, settings.test_split)
        rest = without_questions(records, set(test.questions))
        cut = split(rest, validation=settings.validation_fraction, test=0.0)
        return dataclasses.replace(cut, test=test)
    return split(records, validation=settings.validation_fraction, test=settings.test_fraction)


def read_records(path: str, settings: DataSettings, judgements: str) -> RetrievalSet:
    """Reads one file, folder, built-in or prepared set; `judgements` is the split of a BEIR folder.

    With `data.pool` over sentences the set holds every sentence, whichever the pool: see `pools`.
    """
    if path in BUILT_IN:
        return BUILT_IN[path](cache=settings.cache)
    if path.startswith(PREPARED):
        from endx_jax.data import reqa_dataset

        name, _, part = path.removeprefix(PREPARED).partition(":")
        return reqa_dataset.read(name, part or "train")
    if settings.pool:
        if not is_squad(path):
            raise EndxError(f"{path}: data.pool={settings.pool} is for SQuAD-format data (.json); leave it empty")
        return squad.read_unmerged(path) if settings.pool == PARAGRAPHS else reqa.from_squad(path, "sentences")
    return read(path, split=judgements, question_column=settings.question_column, answer_column=settings.answer_column)


def pools(records: RetrievalSet, settings: DataSettings) -> dict[str, RetrievalSet]:
    """What the questions are ranked against, by name, the pool that `data.pool` chooses first.

    For data after ReQA these are `answers`, the sentences that are right for some question, and `sentences`, all of
    them; for other data it is all that was read.
    """
    if settings.pool in ("", PARAGRAPHS):
        return {settings.pool or "all": records}
    found = {
        "answers": records.subset(range(len(records.questions)), hard_negatives=False),
        "sentences": records,
    }
    return {settings.pool: found[settings.pool]} | found


def is_squad(path: str) -> bool:
    """Whether `data.pool` applies to what is at the path."""
    return path.startswith(PREPARED) or path.lower().removesuffix(".gz").endswith(".json")


def _paths(settings: DataSettings) -> tuple[str, str]:
    """Where to train from and what to report on; the latter empty where it is a part of the former."""
    if settings.path.startswith(PREPARED) and settings.pool not in reqa.POOLS:
        raise EndxError(f"data.path={settings.path} needs data.pool, {' or '.join(reqa.POOLS)}")
    if settings.test_path:
        return settings.path, settings.test_path
    if settings.path.startswith(PREPARED) and ":" not in settings.path:
        return f"{settings.path}:train", f"{settings.path}:validation"
    if settings.pool and os.path.isdir(settings.path):
        return squad.files_of(settings.path)
    return settings.path, ""


def fingerprint(records: RetrievalSet) -> str:
    """sha256 of all that training draws from: texts, judgements, groups and hard negatives, in order."""
    digest = hashlib.sha256()
    for part in (records.questions, records.candidates, records.qrels, records.groups, records.hard_negatives):
        digest.update(json.dumps(part, ensure_ascii=False).encode())
    return digest.hexdigest()
