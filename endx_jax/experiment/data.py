"""Reads the data that a config names, and cuts it into what is trained on, chosen by and reported."""

import dataclasses
import hashlib
import json
import os

from endx_jax.data import reqa
from endx_jax.data.docstrings import docstring_pairs
from endx_jax.data.mixture import mix
from endx_jax.data.readers import comprehension, read, squad
from endx_jax.data.records import RetrievalSet
from endx_jax.data.settings import PARAGRAPHS, DataSettings
from endx_jax.data.splits import Splits, split, split_questions, take, without_questions
from endx_jax.errors import EndxError
from endx_jax.settings import check_choice

# Sets that need no file, by what `data.path` calls them.
BUILT_IN = {"docstrings": docstring_pairs}
# Sets that are prepared once (`endx prepare`) begin with one of these.
PREPARED = ("reqa/", "multireqa/")


def read_splits(settings: DataSettings) -> Splits:
    """Train, validation and test sets.

    Without a test set of its own the three share out one source. With one (`test_path`, or the dev file beside
    SQuAD's train file) the test set is the whole of that, pool included, and questions that stand in it are neither
    trained on nor chosen by. With `data.merge` they share out the questions of both files. `data.pool` is for whichever
    of the two is reading-comprehension data: mined negatives, a BEIR folder, may be trained on beside it. The sets of
    `data.mixture` are trained on too, but for the questions that are held out.
    """
    cut = _split(settings)
    if settings.mixture:
        cut = dataclasses.replace(cut, train=mix([cut.train, *_further(settings, cut)]))
    if settings.max_test_questions:
        cut = dataclasses.replace(cut, test=take(cut.test, settings.max_test_questions))
    return cut


def _further(settings: DataSettings, cut: Splits) -> list[RetrievalSet]:
    """The sets of `data.mixture`, without the questions that are held out."""
    held_out = {*cut.validation.questions, *cut.test.questions}
    found = []
    for path, _ in settings.mixture:
        own = settings if has_paragraphs(path) else dataclasses.replace(settings, pool="")
        found.append(without_questions(read_records(path, own, settings.split, whole=False), held_out))
    return found


def _split(settings: DataSettings) -> Splits:
    if settings.merge:
        both = comprehension.read_unmerged(*squad.files_of(settings.path))
        return split_questions(both, validation=settings.validation_fraction, test=settings.test_fraction)
    path, test_path = paths_of(settings)
    pooled = [place for place in (path, test_path) if settings.pool and place and has_paragraphs(place)]
    if settings.pool and not pooled:
        raise EndxError(_no_paragraphs(path, settings))
    unpooled = dataclasses.replace(settings, pool="")
    records = read_records(path, settings if path in pooled else unpooled, settings.split, whole=False)
    if test_path:
        test = read_records(test_path, settings if test_path in pooled else unpooled, settings.test_split)
        rest = without_questions(records, set(test.questions))
        cut = split(rest, validation=settings.validation_fraction, test=0.0)
        return dataclasses.replace(cut, test=test)
    return split(records, validation=settings.validation_fraction, test=settings.test_fraction)


def read_records(path: str, settings: DataSettings, judgements: str, *, whole: bool = True) -> RetrievalSet:
    """Reads one file, folder, built-in or prepared set; `judgements` is the split of a BEIR folder.

    Without `whole` a BEIR folder's corpus is not held in memory, but for what its judgements name: see `readers.read`.
    With `data.pool` over sentences the set holds every sentence, whichever the pool: see `pools`.
    """
    if path in BUILT_IN:
        return BUILT_IN[path](cache=settings.cache)
    if path.startswith(PREPARED):
        from endx_jax.data import reqa_dataset

        return reqa_dataset.read(*_name_and_split(path))
    if settings.pool:
        if not has_paragraphs(path):
            raise EndxError(_no_paragraphs(path, settings))
        return comprehension.read_unmerged(path) if settings.pool == PARAGRAPHS else reqa.read(path, "sentences")
    columns = {"question_column": settings.question_column, "answer_column": settings.answer_column}
    return read(path, split=judgements, whole=whole, **columns)


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


def has_paragraphs(path: str) -> bool:
    """Whether `data.pool` applies to what is at the path."""
    return path not in BUILT_IN and (path.startswith(PREPARED) or comprehension.holds_paragraphs(path))


def counts_of(path: str, pool: str) -> dict[str, int]:
    """Counts of reading-comprehension data as papers give them.

    Args:
      path: a file, a folder of MultiReQA or a split of a prepared set.
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
        records = comprehension.read_unmerged(path)
        rows = len(records.pairs)
    else:
        conversion = reqa.convert(path, pool)
        records, rows = conversion.records, conversion.rows
    return {"questions": len(records.questions), "answers": len(records.candidates), "rows": rows}


def _name_and_split(path: str) -> tuple[str, str]:
    """Of a prepared set, `reqa/squad:validation`: training where no split is named."""
    name, _, part = path.partition(":")
    return name, part or "train"


def _no_paragraphs(path: str, settings: DataSettings) -> str:
    return f"{path}: data.pool={settings.pool} is for {', '.join(comprehension.READERS)} data; leave it empty"


def paths_of(settings: DataSettings) -> tuple[str, str]:
    """Where to train from and what to report on; the latter empty where it is a part of the former."""
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
    """sha256 of all that training draws from: texts, judgements, groups and hard negatives, in order."""
    digest = hashlib.sha256()
    mixed = () if records.sources is None else (records.sources,)
    for part in (records.questions, records.candidates, records.qrels, records.groups, records.hard_negatives, *mixed):
        digest.update(json.dumps(part, ensure_ascii=False).encode())
    return digest.hexdigest()
