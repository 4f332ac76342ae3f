"""Data of a run: reads the data sets that the settings name, and returns train, validation and test sets."""

import dataclasses
import hashlib
import json
import os

from endx_jax.data import reqa
from endx_jax.data.docstrings import docstring_pairs
from endx_jax.data.mixture import mix
from endx_jax.data.readers import formats, read, squad
from endx_jax.data.records import Pools, RetrievalSet
from endx_jax.data.settings import PARAGRAPHS, DataSettings
from endx_jax.data.splits import Splits, split, split_questions, take, without_questions
from endx_jax.errors import EndxError
from endx_jax.settings import check_choice

# Built-in sets by their name in `data.path`.
BUILT_IN = {"docstrings": docstring_pairs}
# Prefixes of the names of prepared sets (`endx prepare`).
PREPARED = ("reqa/", "multireqa/")


def read_splits(settings: DataSettings) -> Splits:
    """Returns the train, validation and test sets.

    Without separate test data the three are splits of one set. Separate test data (`data.test_path`, or the dev file
    beside SQuAD's train file) are the test set, with their whole pool, and their questions are removed from train and
    validation. With `data.merge` the three are splits of the questions of both files. `data.pool` applies to
    reading-comprehension data; training data may have another format, such as mined negatives. The sets of
    `data.mixture` are added to the train set, without held-out questions.

    Raises:
      EndxError: `data.path` is not set, or the data can't be read.
    """
    if not settings.path:
        raise EndxError("data.path is not set: name a file or folder, or `docstrings` to try training without data")
    cut = _split(settings)
    if settings.mixture:
        cut = dataclasses.replace(cut, train=mix([cut.train, *_further(settings, cut)]))
    if settings.max_test_questions:
        cut = dataclasses.replace(cut, test=take(cut.test, settings.max_test_questions))
    return cut


def _further(settings: DataSettings, cut: Splits) -> list[RetrievalSet]:
    """Returns the sets of `data.mixture` without the held-out questions."""
    held_out = {*cut.validation.questions, *cut.test.questions}
    found = []
    for path, _ in settings.mixture:
        own = settings if has_paragraphs(path) else dataclasses.replace(settings, pool="")
        found.append(without_questions(read_records(path, own, settings.split, whole=False), held_out))
    return found


def _split(settings: DataSettings) -> Splits:
    if settings.merge:
        both = formats.read_unmerged(*squad.files_of(settings.path), skip_invalid=settings.skip_invalid)
        return split_questions(both, validation=settings.validation_fraction, test=settings.test_fraction)
    path, test_path = paths_of(settings)
    if not test_path:
        records = read_records(path, settings, settings.split, whole=False)
        return split(records, validation=settings.validation_fraction, test=settings.test_fraction)
    own = dict.fromkeys((path, test_path), settings)
    if settings.pool:
        unpooled = dataclasses.replace(settings, pool="")
        own = {place: settings if has_paragraphs(place) else unpooled for place in own}
        if settings not in own.values():
            own[path] = settings  # which refuses the pool
    records = read_records(path, own[path], settings.split, whole=False)
    test = read_records(test_path, own[test_path], settings.test_split)
    rest = without_questions(records, set(test.questions))
    cut = split(rest, validation=settings.validation_fraction, test=0.0)
    return dataclasses.replace(cut, test=test)


def read_records(path: str, settings: DataSettings, judgements: str, *, whole: bool = True) -> RetrievalSet:
    """Reads one data set.

    Args:
      path: a file, a folder, or the name of a built-in or prepared set.
      settings: settings of the data. With a pool of sentences or answers the set holds all sentences: see `pools`.
      judgements: split of a BEIR, MS MARCO or `save_to_disk` folder.
      whole: keeps the whole corpus of a BEIR folder: see `readers.read`.

    Raises:
      EndxError: the data can't be read, or `data.pool` is set and they are not reading-comprehension data.
    """
    if path in BUILT_IN:
        if settings.pool:
            raise EndxError(f"{path} is no reading-comprehension data; leave data.pool empty")
        return BUILT_IN[path](cache=settings.cache)
    if path.startswith(PREPARED):
        from endx_jax.data import reqa_dataset

        return reqa_dataset.read(*_name_and_split(path))
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


def pools(records: RetrievalSet, settings: DataSettings) -> Pools:
    """Returns the retrieval pools of a set; the primary one is that of `data.pool`.

    With a ReQA pool these are `answers`, the sentences that are right for some question, and `sentences`, all of them.
    For other data there is one pool of all candidates.
    """
    if settings.pool in ("", PARAGRAPHS):
        return Pools({settings.pool or "all": records})
    found = {
        "answers": records.subset(range(len(records.questions)), hard_negatives=False),
        "sentences": records,
    }
    return Pools({settings.pool: found[settings.pool]} | found)


def has_paragraphs(path: str) -> bool:
    """Returns true if a path names reading-comprehension data, to which `data.pool` applies."""
    return path not in BUILT_IN and (path.startswith(PREPARED) or formats.holds_paragraphs(path))


def counts_of(path: str, pool: str) -> dict[str, int]:
    """Counts questions, answers and pairs of reading-comprehension data, as papers report them.

    Args:
      path: a file, a MultiReQA folder or a split of a prepared set.
      pool: `answers`, `sentences` or `paragraphs`; see `pools`.

    Returns:
      `questions`; `answers`, the candidates of the pool; and `rows`, the pairs before equal questions are merged.
    """
    if path.startswith(PREPARED):
        from endx_jax.data import reqa_dataset

        name, part = _name_and_split(path)
        check_choice(f"the split of {name}", part, reqa_dataset.SPLITS)
        reqa_dataset.ensure(name)
        told = reqa_dataset.summary(name)[part]
        return {
            "questions": told["questions"],
            "answers": told["answers" if pool == "answers" else "candidates"],
            "rows": told["rows"],
        }
    if pool == PARAGRAPHS:
        records = formats.read_unmerged(path)
        rows = len(records.pairs)
    else:
        conversion = reqa.convert(path, pool)
        records, rows = conversion.records, conversion.rows
    return {"questions": len(records.questions), "answers": len(records.candidates), "rows": rows}


def _name_and_split(path: str) -> tuple[str, str]:
    """Returns the name and split of a prepared set such as `reqa/squad:validation`; `train` without a split."""
    name, _, part = path.partition(":")
    return name, part or "train"


def paths_of(settings: DataSettings) -> tuple[str, str]:
    """Returns the paths of the training and test data; the latter is empty if both are splits of one set."""
    if settings.path.startswith(PREPARED) and settings.pool not in reqa.POOLS:
        raise EndxError(f"data.path={settings.path} needs data.pool, {' or '.join(reqa.POOLS)}")
    if settings.test_path:
        return settings.path, settings.test_path
    if settings.path.startswith(PREPARED) and ":" not in settings.path:
        return f"{settings.path}:train", f"{settings.path}:validation"
    if settings.pool and os.path.isdir(settings.path) and not has_paragraphs(settings.path):
        return squad.files_of(settings.path)
    return settings.path, ""


def fingerprint(records: RetrievalSet) -> str:
    """Returns the sha256 of all training data: texts, judgements, groups and hard negatives, in order."""
    digest = hashlib.sha256()
    mixed = () if records.sources is None else (records.sources,)
    for part in (records.questions, records.candidates, records.qrels, records.groups, records.hard_negatives, *mixed):
        digest.update(json.dumps(part, ensure_ascii=False).encode())
    return digest.hexdigest()
