"""Tokenised training pairs of a run in `data.tokens`: written once by several processes, and then only mapped."""

import concurrent.futures.process
import gc
import hashlib
import json
import math
import multiprocessing
import os
import pathlib
import shutil
import time
from collections.abc import Iterator, Mapping, Set
from typing import NamedTuple

from endx_jax.data.readers import examples, formats, shards, text_files
from endx_jax.data.records import RetrievalSet
from endx_jax.data.settings import DataSettings, Source
from endx_jax.data.splits import Splits
from endx_jax.data.token_store import MANIFEST, SIDES, PartWriter, TokenStore, hashes, is_complete, merge
from endx_jax.data.tokenization import TextProcessor, Tokenizer
from endx_jax.errors import EndxError
from endx_jax.experiment.data import BUILT_IN, PREPARED, read_records, settings_of
from endx_jax.experiment.manifest import cores
from endx_jax.experiment.workdir import check_writable
from endx_jax.files import locked, reporting_full_disk, write_text
from endx_jax.hub import local_path
from endx_jax.parallel.console import say
from endx_jax.parallel.distributed import on_primary

# Rows of a parquet file that are one part: enough to start a process for, few enough to be repeated after a kill.
ROWS = 1_000_000
PARTS, ABOUT, LOCK = "parts", "about.json", ".lock"


class Part(NamedTuple):
    """Part of a source that one process tokenises.

    Attributes:
      folder: folder to write.
      source: the source.
      format: format of `formats.detect_format`; empty if the source is read as a whole.
      part: file or row groups.
    """

    folder: pathlib.Path
    source: Source
    format: str
    part: shards.Part

    @property
    def contents(self) -> str:
        """File, row groups and size of the part: a finished part of other contents is written again."""
        file = self.part.file
        return f"{self.part} of {os.path.getsize(file) if os.path.exists(file) else 0} bytes"


def stored(settings: DataSettings, processors: Mapping[str, TextProcessor], splits: Splits) -> TokenStore:
    """Returns the training pairs in `data.tokens`, and writes them first if they are not there.

    Args:
      settings: settings of the data.
      processors: text processors of the sides.
      splits: validation and test sets, whose questions are not trained on.

    Raises:
      EndxError: the data can't be read, or the folder holds pairs of other data, tokenizers or lengths, or pairs with
        questions that are held out now.
    """
    folder, about = pathlib.Path(settings.tokens).expanduser(), _about(settings, processors)
    held_out = {*splits.validation.questions, *splits.test.questions}
    if not (folder / MANIFEST).is_file():
        on_primary(lambda: _write(folder, settings, processors, held_out, about), "tokenised")
    store = TokenStore.open(folder)
    changed = [
        f"{name}: {store.manifest.get(name)} and now {value}"
        for name, value in about.items()
        if store.manifest.get(name) != value
    ]
    if changed:
        raise EndxError(f"{folder} holds tokens of other data ({'; '.join(changed)}): set another data.tokens")
    if trained := store.contains(sorted(held_out)):
        raise EndxError(
            f"{folder} has {len(trained):,} of the held-out questions, such as {trained[0][:60]!r}: set another "
            "data.tokens, so that they are left out"
        )
    return store


def _about(settings: DataSettings, processors: Mapping[str, TextProcessor]) -> dict:
    """Describes what determines the tokens; the values are those of JSON."""
    return {
        "sources": [[source.path, source.question_prompt, source.answer_prompt] for source in settings.sets],
        "split": settings.split,
        "pool": settings.pool,
        "columns": [settings.question_column, settings.answer_column],
        "skip_invalid": settings.skip_invalid,
        "tokenizer": {side: processors[side].tokenizer.identity for side in SIDES},
        "prompt": {side: processors[side].prompt for side in SIDES},
        "length": {side: processors[side].length for side in SIDES},
        "pad_id": {side: processors[side].tokenizer.pad_id for side in SIDES},
    }


def _write(
    folder: pathlib.Path,
    settings: DataSettings,
    processors: Mapping[str, TextProcessor],
    held_out: Set[str],
    about: Mapping,
) -> None:
    """Writes the parts that are missing, and merges them."""
    began = time.perf_counter()
    check_writable(folder, "--config.data.tokens")
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / LOCK):
        if (folder / MANIFEST).is_file():  # written by another run since the caller looked
            return
        parts = [_parts(folder / PARTS / str(n), source, settings) for n, source in enumerate(settings.sets)]
        begun = json.dumps([about, hashlib.sha256(hashes(sorted(held_out)).tobytes()).hexdigest()])
        if not _holds(folder / PARTS / ABOUT, begun):
            shutil.rmtree(folder / PARTS, ignore_errors=True)
            write_text(folder / PARTS / ABOUT, begun)
        missing = [part for own in parts for part in own if not is_complete(part.folder, part.contents)]
        wanted = settings.tokenizing_processes or cores()
        say(f"tokenising {len(missing)} parts of {', '.join(source.path for source in settings.sets)} into {folder}")
        specs = {side: (str(own.tokenizer.folder), own.length, own.prompt) for side, own in processors.items()}
        if min(wanted, len(missing)) > 1:
            count, context = min(wanted, len(missing)), multiprocessing.get_context("spawn")
            state = specs, settings, held_out
            try:
                with concurrent.futures.ProcessPoolExecutor(count, context, _start, state) as pool:
                    for n, _ in enumerate(pool.map(_tokenize, missing), 1):
                        say(f"tokenised {n} of {len(missing)} parts in {time.perf_counter() - began:.0f} s")
            except concurrent.futures.process.BrokenProcessPool:
                raise EndxError(
                    "a tokenising process was killed, possibly for lack of memory: set data.tokenizing_processes "
                    f"below {count} and run again; finished parts are kept"
                ) from None
        else:
            for part in missing:
                _tokenize_with(part, processors, settings, held_out)
        say("merging equal texts")
        folders = [[part.folder for part in own] for own in parts]
        with reporting_full_disk(folder):
            merge(folder, folders, [source.path for source in settings.sets], about)
        shutil.rmtree(folder / PARTS)
    say(f"tokenised in {time.perf_counter() - began:.0f} s")


def _holds(file: pathlib.Path, text: str) -> bool:
    return file.is_file() and file.read_text() == text


def _parts(folder: pathlib.Path, source: Source, settings: DataSettings) -> list[Part]:
    """Returns the parts of a source in order."""
    path = local_path(source.path)
    found = "" if path in BUILT_IN or path.startswith(PREPARED) else formats.detect_format(path)
    if found not in (formats.COLUMNS, *formats.ROW_PARSERS):
        return [Part(folder / "0", source, "", shards.Part(source.path))]
    parts = shards.parts(path, settings.split, ROWS)
    return [Part(folder / str(n), source, found, part) for n, part in enumerate(parts)]


# State of a process of the pool: text processors, settings and held-out questions.
_process: list = []


def _start(specs: Mapping[str, tuple[str, int, str]], settings: DataSettings, held_out: Set[str]) -> None:
    """Loads the tokenizers of a process, each of which uses one core."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    loaded = {folder: Tokenizer(folder) for folder, _, _ in specs.values()}
    made = {side: TextProcessor(loaded[folder], length, prompt) for side, (folder, length, prompt) in specs.items()}
    _process[:] = made, settings, held_out


def _tokenize(part: Part) -> None:
    _tokenize_with(part, *_process)


def _tokenize_with(
    part: Part, processors: Mapping[str, TextProcessor], settings: DataSettings, held_out: Set[str]
) -> None:
    source = part.source
    uncached = {side: TextProcessor(own.tokenizer, own.length, own.prompt) for side, own in processors.items()}
    writer = PartWriter(part.folder, uncached, (source.question_prompt, source.answer_prompt), held_out)
    gc.freeze()  # else garbage collection visits the libraries' objects repeatedly, a fifth of the time
    try:
        writer.write(_examples(part, settings), part.contents)
    finally:
        gc.unfreeze()


def _examples(part: Part, settings: DataSettings) -> Iterator[examples.Example]:
    """Yields the examples of a part."""
    if not part.format:
        own = settings_of(part.source.path, settings)
        yield from _of_records(read_records(part.source.path, own, settings.split, whole=False))
        return
    invalid = text_files.InvalidRows(part.part.file, skip=settings.skip_invalid)
    table = formats.Rows(part.format, (settings.question_column, settings.answer_column))
    for _, where, row in table.read(part.source.path, invalid, part=part.part):
        parsed = []
        with invalid.row():
            parsed = [table.parse(row, where)]
        yield from parsed
    invalid.log()


def _of_records(records: RetrievalSet) -> Iterator[examples.Example]:
    """Yields a question of a retrieval set at a time."""
    for row, question in enumerate(records.questions):
        rows = records.qrels[row], records.hard_negatives[row] if records.hard_negatives else ()
        right, wrong = ([examples.Named(records.candidates[n]) for n in own] for own in rows)
        known = None if records.scores is None else [records.scores[row].get(n, math.nan) for own in rows for n in own]
        yield examples.Example(examples.Named(question), right, wrong, known)
