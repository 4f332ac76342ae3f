"""Reads the data that a config names, and cuts it into what is trained on, chosen by and reported."""

import dataclasses
import hashlib
import json

from endx_jax.data.batches import DataSettings
from endx_jax.data.docstrings import docstring_pairs
from endx_jax.data.readers import read
from endx_jax.data.records import RetrievalSet
from endx_jax.data.splits import Splits, split, take, without_questions

# Sets that need no file, by what `data.path` calls them.
BUILT_IN = {"docstrings": docstring_pairs}


def read_splits(settings: DataSettings) -> Splits:
    """Train, validation and test sets.

    Without `test_path` the three share out one source. With it, the test set is the whole of that file or folder, pool
    included, and questions that stand in it are neither trained on nor chosen by.
    """
    records = read_records(settings.path, settings, settings.split)
    if settings.test_path:
        test = read_records(settings.test_path, settings, settings.test_split)
        rest = without_questions(records, set(test.questions))
        cut = split(rest, validation=settings.validation_fraction, test=0.0)
        cut = dataclasses.replace(cut, test=test)
    else:
        cut = split(records, validation=settings.validation_fraction, test=settings.test_fraction)
    if settings.max_test_questions:
        cut = dataclasses.replace(cut, test=take(cut.test, settings.max_test_questions))
    return cut


def read_records(path: str, settings: DataSettings, judgements: str) -> RetrievalSet:
    """Reads one file, folder or built-in set; `judgements` is the split of a BEIR folder."""
    if path in BUILT_IN:
        return BUILT_IN[path]()
    return read(path, split=judgements, question_column=settings.question_column, answer_column=settings.answer_column)


def fingerprint(records: RetrievalSet) -> str:
    """sha256 of all texts and judgements, in order."""
    digest = hashlib.sha256()
    for part in (records.questions, records.candidates, records.qrels):
        digest.update(json.dumps(part, ensure_ascii=False).encode())
    return digest.hexdigest()
