"""Tokenized training pairs of a run in `data.tokens`: written once by several processes, and then only mapped."""

import concurrent.futures.process
import contextlib
import functools
import gc
import hashlib
import itertools
import json
import multiprocessing
import os
import pathlib
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator, Mapping, Set
from typing import NamedTuple

from endx_jax import json_files
from endx_jax.buckets import url_of
from endx_jax.data.batches.token_store import (
    MANIFEST,
    SIDES,
    TEXTS,
    TokenStore,
    is_whole,
    join_parts,
    write_part,
)
from endx_jax.data.formats import Data, folders, row_files
from endx_jax.data.formats.made import MADE
from endx_jax.data.formats.registry import PACKAGED, PREPARED
from endx_jax.data.sets.examples import texts_of
from endx_jax.data.sets.splits import Splits
from endx_jax.data.settings import DataSettings
from endx_jax.data.sources import data_of, find_data
from endx_jax.data.tokenization import TextProcessor
from endx_jax.errors import EndxError
from endx_jax.experiment.workdir import check_writable
from endx_jax.files import expanded, locked, sha256_of, write_text
from endx_jax.parallel.agreement import on_primary
from endx_jax.parallel.console import say
from endx_jax.parallel.environment import cores
from endx_jax.settings import require

# Rows of a parquet file that are one part: enough to start a process for, few enough to be repeated after a kill.
ROWS = 1_000_000


class SourcePart(NamedTuple):
    """Part of a source that one process tokenizes.

    Attributes:
      data: data of the source; its option `part` is None if it is read as a whole.
      prompts: strings prepended to its questions and answers.
      sha256: hash of the file's contents, or of the whole source.
    """

    data: Data
    prompts: tuple[str, str]
    sha256: str


def stored(settings: DataSettings, processors: Mapping[str, TextProcessor], splits: Splits) -> TokenStore:
    """Returns the training pairs in `data.tokens`, written first if missing, without held-out questions of `splits`.

    Raises:
      EndxError: the data can't be read, or the folder holds other files, or pairs of other data, tokenizers or lengths,
        or pairs with questions that are held out now.
    """
    require(not url_of(settings.tokens), f"data.tokens={settings.tokens} is in a bucket: name a local folder")
    folder = expanded(settings.tokens)
    held_out = {*splits.validation.questions, *splits.test.questions}
    on_primary(lambda: _ensure(folder, settings, processors, held_out), "tokenized")
    if not json_files.read_optional(folder / MANIFEST):  # on another host, whose processes have a folder of their own
        _ensure(folder, settings, processors, held_out, waits=True)
    store = TokenStore.open(folder)
    if trained := store.contains(sorted(held_out), {source.question_prompt for source in settings.sets}):
        raise EndxError(
            f"{folder} has {len(trained):,} of the held-out questions, such as {trained[0][:60]!r}: set another "
            "data.tokens, so that they are left out"
        )
    return store


def _ensure(
    folder: pathlib.Path,
    settings: DataSettings,
    processors: Mapping[str, TextProcessor],
    held_out: Set[str],
    *,
    waits: bool = False,
) -> None:
    """Writes the token store unless it exists; otherwise checks that it was made from the same data.

    While another process writes it, this one raises InUse, or `waits`.
    """
    check_writable(folder, "data.tokens")
    folder.mkdir(parents=True, exist_ok=True)
    has_files = any(not name.startswith(".") for name in os.listdir(folder))
    if has_files and not (folder / MANIFEST).is_file():
        raise EndxError(f"{folder} holds other files: name a new folder with data.tokens")
    parts: list[list[SourcePart]] = []
    sources = []
    for number, source in enumerate(settings.sets):
        prompts = source.question_prompt, source.answer_prompt
        data = find_data(source.path, settings, settings.split) if number else data_of(settings)[0]
        parts.append(_parts(data, prompts))
        digest = hashlib.sha256(repr([part.sha256 for part in parts[-1]]).encode()).hexdigest()[:16]
        sources.append([source.path, *prompts, digest])
    about = {
        "sources": sources,
        "split": settings.split,
        "pool": settings.pool,
        "columns": [settings.question_column, settings.answer_column],
        "skip_invalid": settings.skip_invalid,
        "tokenizer": {side: processors[side].tokenizer.identity for side in SIDES},
        "prompt": {side: processors[side].prompt for side in SIDES},
        "length": {side: processors[side].length for side in SIDES},
        "pad_id": {side: processors[side].tokenizer.pad_id for side in SIDES},
    }
    if not _is_written(folder, about):
        with locked(folder / ".lock", waits=waits):
            if not _is_written(folder, about):  # by another process
                # Marks the folder, since only marked ones are written to.
                write_text(folder / MANIFEST, "{}\n")
                _write(folder, parts, settings, processors, held_out, about)


def _is_written(folder: pathlib.Path, about: Mapping) -> bool:
    """Returns true if the folder has a store; raises EndxError if it is of other data."""
    manifest = json_files.read_optional(folder / MANIFEST)
    if not manifest:
        return False
    written = json_files.as_object(manifest.get("about"), f"{folder / MANIFEST}: 'about'")
    changed = [name for name in {**about, **written} if written.get(name) != about.get(name)]
    if changed:
        values = "; ".join(f"{name}: {written.get(name)} and now {about.get(name)}" for name in changed)
        raise EndxError(f"{folder} holds tokens of other data ({values}): set another data.tokens")
    return True


def _write(
    folder: pathlib.Path,
    parts: list[list[SourcePart]],
    settings: DataSettings,
    processors: Mapping[str, TextProcessor],
    held_out: Set[str],
    about: Mapping,
) -> None:
    """Writes the parts that are missing, and merges them."""
    began = time.perf_counter()
    for unfinished in (*folder.glob(".part-*"), *folder.glob(".*.npy.*")):
        unfinished.unlink(missing_ok=True)
    common = json.dumps([{**about, "sources": None}, sorted(held_out), [*TEXTS]])
    files = [[_file(folder, part, common) for part in of_source] for of_source in parts]
    every = zip(itertools.chain(*files), itertools.chain(*parts), strict=True)
    missing = {file: part for file, part in every if not is_whole(file)}
    others_know = all(part.data.format in PACKAGED for part in missing.values())
    count = min(settings.tokenizing_processes or cores(), len(missing)) if others_know else 1
    paths = [source.path for source in settings.sets]
    say(f"tokenizing {len(missing)} parts of {', '.join(paths)} into {folder}")
    tokenize = functools.partial(_tokenize, processors=processors, held_out=held_out)
    try:
        for n, _ in enumerate(_in_processes(count, tokenize, missing), 1):
            say(f"tokenized {n} of {len(missing)} parts in {time.perf_counter() - began:.0f} s")
    except concurrent.futures.process.BrokenProcessPool:
        raise EndxError(
            "a tokenizing process was killed, possibly for lack of memory: set data.tokenizing_processes "
            f"below {count} and run again; finished parts are kept"
        ) from None
    say("merging equal texts")
    join_parts(folder, files, paths, about)
    for file in folder.glob("part-*"):
        file.unlink()
    say(f"tokenized in {time.perf_counter() - began:.0f} s")


def _in_processes(count: int, tokenize: Callable, parts: Mapping[pathlib.Path, SourcePart]) -> Iterator[None]:
    """Tokenizes parts in `count` processes, or in this one if no others can be started; yields after each part."""
    script = sys.modules["__main__"]
    done: Iterator[None] = map(tokenize, parts, parts.values())
    with contextlib.ExitStack() as stack:
        try:
            if count > 1:
                context = multiprocessing.get_context("spawn")
                pool = stack.enter_context(concurrent.futures.ProcessPoolExecutor(count, context, _start))
                # Otherwise the processes would run the program's script, which may have no `if __name__ == "__main__"`.
                sys.modules["__main__"] = types.ModuleType("__main__")
                done = pool.map(tokenize, parts, parts.values())
        except (OSError, ImportError, AssertionError) as failure:  # no shared memory, or no processes allowed
            stack.close()
            say(f"processes of data.tokenizing_processes={count} can't be started ({failure}): this one tokenizes")
        finally:
            sys.modules["__main__"] = script
        yield from done


def _file(folder: pathlib.Path, part: SourcePart, common: str) -> pathlib.Path:
    """Returns the file of a part, named by all that determines its contents."""
    rows = part.data.options.part
    read = [part.data.format.name, rows[1:]] if rows else ["", (None, 0)]
    about = json.dumps([common, *part.prompts, *read, part.sha256])
    return folder / f"part-{hashlib.sha256(about.encode()).hexdigest()[:32]}.arrow"


def _parts(data: Data, prompts: tuple[str, str]) -> list[SourcePart]:
    """Returns the parts of a source in order, with the hashes of their files."""
    data = data.with_options(whole=False)
    path, split, is_table = data.path, data.options.split, data.format.in_parts
    if data.format in (MADE, PREPARED):
        return [SourcePart(data, prompts, data.records().sha256)]
    files = folders.table_files(path, split) if is_table else folders.files_at(path)
    with concurrent.futures.ThreadPoolExecutor(cores()) as pool:
        digests = dict(zip(files, pool.map(sha256_of, map(pathlib.Path, files)), strict=True))
    if is_table:
        parts = row_files.file_parts(path, split, ROWS)
        return [SourcePart(data.with_options(part=part), prompts, digests[part.file]) for part in parts]
    return [SourcePart(data, prompts, repr([*digests.values()]))]


def _start() -> None:
    """Prepares a process of the pool, which uses one core and ends when its parent does, even if that is killed."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _tokenize(
    file: pathlib.Path,
    part: SourcePart,
    processors: Mapping[str, TextProcessor],
    held_out: Set[str],
) -> None:
    gc.freeze()  # else garbage collection visits the libraries' objects repeatedly, a fifth of the time
    read = part.data.examples() if part.data.options.part else part.data.records().examples
    examples = ((one.question, texts_of(one.right), texts_of(one.wrong), one.scores, one.excluded) for one in read)
    write_part(file, examples, processors, part.prompts, held_out)
