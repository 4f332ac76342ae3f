"""Changes of an index: locks, kills at any point, readers beside a writer, replacement and compaction."""

import dataclasses
import fcntl
import itertools
import json
import os
import shutil
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from helpers import one_line_error

from endx_jax.data.documents import Document
from endx_jax.errors import EndxError, InUse
from endx_jax.retrieval import index as index_module
from endx_jax.retrieval.approximate import Approximate
from endx_jax.retrieval.index import Index, write_index
from endx_jax.retrieval.shards import COSINE, read_manifest, write_manifest
from endx_jax.retrieval.text_search import TextSearch

MODEL = {"name": "somebody", "identity": "0123456789abcdef"}
ASKED = np.float32([[1, 0]])


def documents(*names):
    return [Document(name, f"text of {name}") for name in names]


def rows(count, first=1):
    return np.arange(first, first + 2 * count, dtype=np.float32).reshape(count, 2)


def write(folder, count=3):
    write_index(folder, rows(count), documents(*(f"d{n}" for n in range(count))), metric=COSINE, model=MODEL)


def names(folder):
    return [document.id for _, document in Index(folder).snapshot.documents()]


def texts_on_disk(folder):
    return b"".join(file.read_bytes() for file in folder.iterdir() if file.is_file()).decode(errors="replace")


@pytest.fixture
def opened(tmp_path) -> Index:
    write(tmp_path / "index")
    return Index(tmp_path / "index")


def test_the_rows_of_added_documents_follow_deleted_ones(opened):
    opened.delete(["d0"])
    opened.add(documents("new"), rows(1))  # row 3, and not row 2, of which the document is d2
    opened.delete(["new"])
    for found in (opened.snapshot, Index(opened.folder).snapshot):
        assert [document.id for _, document in found.documents()] == ["d1", "d2"]


@pytest.mark.parametrize("how", [fcntl.LOCK_SH, fcntl.LOCK_EX])
@pytest.mark.parametrize("name", [".", ".lock"])
def test_a_lock_that_another_process_holds_is_waited_for_a_second_at_most(opened, name, how):
    """Whoever may read a file may lock it."""
    opened.add(documents("first"), rows(1))
    handle = os.open(opened.folder / name, os.O_RDONLY)
    try:
        fcntl.flock(handle, how)
        started = time.monotonic()
        if name == ".lock":
            with one_line_error("is in use by process .*: wait for it or stop it") as refused:
                opened.add(documents("second"), rows(1))
            assert isinstance(refused.value, InUse)
        else:
            opened.add(documents("second"), rows(1))
        assert time.monotonic() - started < 1.5
        assert ("second" in opened) == (name == ".")
        assert opened.search(ASKED, 1).rows.shape == (1, 1)
    finally:
        os.close(handle)
    if name == ".lock":
        opened.add(documents("second"), rows(1))
    assert names(opened.folder) == ["d0", "d1", "d2", "first", "second"]


def test_an_index_that_is_held_is_changed_by_its_holder_only(opened, monkeypatch):
    monkeypatch.setattr(index_module, "WAIT", 0.05)
    other = Index(opened.folder)
    with opened.held():
        opened.add(documents("ours"), rows(1))
        with one_line_error(f"is in use by process {os.getpid()} on .* since"):
            other.delete(["d0"])
        with pytest.raises(InUse):
            write(opened.folder)
    Index(opened.folder).delete(["d0"])
    assert names(opened.folder) == ["d1", "d2", "ours"]


def test_the_target_of_a_lock_that_is_a_symbolic_link_is_not_overwritten(opened, tmp_path):
    (tmp_path / "precious").write_text("contents")
    (opened.folder / ".lock").unlink()
    (opened.folder / ".lock").symlink_to(tmp_path / "precious")
    with one_line_error("can't write .*/.lock: it is a symbolic link; remove it"):
        opened.delete(["d0"])
    with one_line_error("it is a symbolic link"):
        write(opened.folder)
    assert (tmp_path / "precious").read_text() == "contents"


@pytest.mark.parametrize("change", ["add", "delete", "compact"])
def test_an_index_that_was_changed_is_not_replaced(opened, change):
    opened.delete(["d1"])
    if change == "add":
        opened.add(documents("new"), rows(1))
    if change == "compact":
        assert opened.compact() == 1
    before = names(opened.folder)
    with one_line_error("index was not replaced, as documents were added or deleted since it was written") as kept:
        write(opened.folder)
    assert isinstance(kept.value, InUse)
    assert names(opened.folder) == before


@pytest.mark.parametrize(
    ("fields", "changed"),
    [({}, False), ({"deleted": [1]}, True), ({"shards": [{"name": "00001", "documents": 3}]}, True)],
)
def test_manifests_that_do_not_say_whether_they_were_changed(opened, fields, changed):
    file = opened.folder / "manifest.json"
    old = {key: value for key, value in json.loads(file.read_text()).items() if key not in ("changed", "generation")}
    file.write_text(json.dumps(old | fields))
    assert read_manifest(opened.folder).changed == changed


def test_an_index_that_cannot_be_read_is_not_replaced(opened):
    (opened.folder / "manifest.json").write_text("{")
    with one_line_error("index was not replaced: .*manifest.json.*: broken JSON"):
        write(opened.folder)


@pytest.mark.parametrize("place", ["file", "dangling"])
def test_a_place_that_is_no_folder_is_refused(tmp_path, place):
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to("nowhere")
    with one_line_error(f"can't write {tmp_path / place}: File exists"):
        write(tmp_path / place)


def test_a_symbolic_link_to_a_folder_is_followed(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "index").symlink_to("elsewhere")
    write(tmp_path / "index")
    assert (tmp_path / "index").is_symlink()
    assert names(tmp_path / "elsewhere") == ["d0", "d1", "d2"]


# Runs a change in one process after another, each of which ends at a later call that changes a file, as if killed.
KILLED = """
import os, pathlib, sys, tempfile
sys.path.insert(0, os.path.dirname(sys.argv[3]))
import test_index_changes as tests
from endx_jax.retrieval.index import Index
home, change, left = pathlib.Path(sys.argv[1]), sys.argv[2], 0

def mortal(call):
    def called(*arguments, **options):
        global left
        left -= 1
        if left < 0:
            os._exit(7)
        return call(*arguments, **options)
    return called

def run(folder):
    index = Index(folder)
    for name in ("replace", "unlink", "rename", "mkdir", "chmod"):
        setattr(os, name, mortal(getattr(os, name)))
    tempfile.mkstemp = mortal(tempfile.mkstemp)
    if change == "write":
        tests.write(folder, 5)
    elif change == "add":
        index.add(tests.documents("new", "d1"), tests.rows(2), replace=True)
    elif change == "delete":
        index.delete(["d0", "d1"])  # two of three, so this compacts

for steps in range(60):
    tests.write(home / str(steps) / "index")
    child = os.fork()
    if not child:
        left = steps
        run(home / str(steps) / "index")
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status == 0:
        break
    assert status == 7, status
"""
AFTER = {"write": ["d0", "d1", "d2", "d3", "d4"], "add": ["d0", "d2", "new", "d1"], "delete": ["d2"]}


@pytest.mark.slow
@pytest.mark.parametrize("change", AFTER)
def test_killed_at_any_point_the_old_state_or_the_new_one_is_left(tmp_path, change):
    """Every kill leaves a sound index; the next change removes the files that it left."""
    command = [sys.executable, "-c", KILLED, str(tmp_path), change, __file__]
    subprocess.run(command, timeout=120, check=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})
    folders = [tmp_path / str(steps) / "index" for steps in range(len([*tmp_path.iterdir()]))]
    outcomes = [names(folder) for folder in folders]
    assert [outcome for outcome, _ in itertools.groupby(outcomes)] == [["d0", "d1", "d2"], AFTER[change]]
    assert len(folders) >= 8
    for folder in folders:
        index = Index(folder)
        index.add(documents("after"), rows(1))
        assert len([*folder.iterdir()]) == 2 * len(index.manifest.shards) + 2, folder
        assert [*folder.parent.iterdir()] == [folder]


def test_readers_open_whole_states_while_a_writer_adds_replaces_and_compacts(opened):
    """Pairs are added and deleted together, and the index is replaced: a reader finds both halves, or none."""
    failures, counts, stop = [], [], threading.Event()

    def read():
        while not stop.is_set():
            try:
                found = names(opened.folder)
            except (EndxError, OSError, ValueError) as failure:
                failures.append(repr(failure))
                continue
            counts.append(sum(name.startswith("pair") for name in found))

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    end, n = time.monotonic() + 20, 0
    try:
        while time.monotonic() < end and (len(counts) < 200 or n < 25):
            n += 1
            index = Index(opened.folder)
            index.add(documents(f"pair {n} a", f"pair {n} b"), rows(2))
            index.delete([f"pair {n} a", f"pair {n} b"])
            if n % 5 == 0:  # as an evaluation writes a new index where an unchanged one is
                write_manifest(opened.folder, dataclasses.replace(index.manifest, changed=False))
                write(opened.folder)
    finally:
        stop.set()
        for reader in readers:
            reader.join()
    assert failures == []
    assert len(counts) >= 100
    assert set(counts) <= {0, 2}


def test_an_index_that_always_changes_is_given_up_in_one_line(opened, monkeypatch):
    generations = itertools.count()
    real = index_module.read_manifest
    monkeypatch.setattr(
        index_module, "read_manifest", lambda folder: dataclasses.replace(real(folder), generation=next(generations))
    )
    with one_line_error("changed 100 times while it was opened"):
        Index(opened.folder)


def test_a_folder_that_was_moved_away_or_replaced_is_noticed(opened, tmp_path):
    before = opened.search(ASKED, 3).rows.tolist()
    opened.folder.rename(tmp_path / "old")
    for change in (lambda: opened.delete(["d0"]), lambda: opened.add(documents("new"), rows(1)), opened.compact):
        with one_line_error("index was changed, replaced or moved by another process .*: open it again"):
            change()
    assert not opened.folder.exists()
    shutil.copytree(tmp_path / "old", opened.folder)  # the same manifest, in another file
    with one_line_error("was changed, replaced or moved"):
        opened.delete(["d0"])
    assert opened.search(ASKED, 3).rows.tolist() == before
    assert [document.id for _, document in opened.snapshot.documents()] == ["d0", "d1", "d2"]
    assert names(tmp_path / "old") == names(opened.folder) == ["d0", "d1", "d2"]


@pytest.mark.parametrize("kept", [0, 100])
@pytest.mark.parametrize("pattern", ["embeddings-*", "documents-*"])
def test_files_that_are_cut_short_while_they_are_open_do_not_kill_the_process(opened, pattern, kept):
    """Copying an index over another one truncates its files; to read beyond their end would be a SIGBUS."""
    (file,) = opened.folder.glob(pattern)
    os.truncate(file, min(kept, file.stat().st_size - 1))
    with one_line_error(f"{file.name} was overwritten while it was open: .* rename its folder"):
        if pattern == "documents-*":
            opened.document(2)
        else:
            opened.search(ASKED, 1)
    with one_line_error("was overwritten|can't be read|is incomplete|does not match"):
        opened.add(documents("new"), rows(1))
        Index(opened.folder).document(2)


def test_compaction_removes_deleted_texts_and_keeps_the_rest(opened):
    opened.add(documents("e0", "e1"), rows(2, first=20))
    opened.delete(["d1", "e0"])
    before = opened.snapshot
    assert "text of d1" in texts_on_disk(opened.folder)
    assert opened.compact() == 2
    assert opened.compact() == 0
    assert "text of d1" not in texts_on_disk(opened.folder)
    assert "text of e0" not in texts_on_disk(opened.folder)
    for found in (opened, Index(opened.folder)):
        snapshot = found.snapshot
        assert [(row, document.id) for row, document in snapshot.documents()] == [(0, "d0"), (1, "d2"), (2, "e1")]
        np.testing.assert_array_equal(snapshot.vectors(0, 3), [[1, 2], [5, 6], [22, 23]])
        assert snapshot.search(ASKED, 9).rows.tolist() == [[2, 1, 0]]
        assert (snapshot.manifest.deleted, len(snapshot)) == ((), 3)
    # Those who work with the state before are not disturbed.
    assert [document.id for _, document in before.documents()] == ["d0", "d2", "e1"]
    assert before.document(1) == Document("d1", "text of d1")
    opened.delete(["d2"])
    opened.add(documents("f"), rows(1))
    assert names(opened.folder) == ["d0", "e1", "f"]


@pytest.mark.parametrize("precision", ["float16", "int8"])
def test_compaction_copies_embeddings_bit_for_bit(tmp_path, precision):
    from endx_jax.numerics import Quantized

    codes = np.arange(8).reshape(4, 2)
    whole = Quantized(codes.astype(np.int8), np.float32([1, 2, 3, 4])) if precision == "int8" else codes.astype("f2")
    write_index(tmp_path / "i", whole, documents(*"abcd"), metric=COSINE, model=MODEL)
    index = Index(tmp_path / "i")
    index.delete(["b"])
    expected = index.snapshot.vectors(0, 4)[[0, 2, 3]]
    index.compact()
    np.testing.assert_array_equal(Index(tmp_path / "i").snapshot.vectors(0, 3), expected)


def test_an_index_in_which_most_is_deleted_compacts_itself(opened):
    """A hundred replacements of the same documents: the files hold at most twice as many rows as there are."""
    for n in range(100):
        opened.add([Document("d0", f"edition {n}."), Document("d1", f"edition {n}.")], rows(2), replace=True)
        assert len(opened.snapshot.living) <= 2 * len(opened)
    assert len(opened) == 3
    text = texts_on_disk(opened.folder)
    assert "edition 99." in text
    assert "edition 97." not in text
    opened.delete(["d0", "d1", "d2"])
    assert "edition" not in texts_on_disk(opened.folder)
    opened.add(documents("again"), rows(1))
    assert names(opened.folder) == ["again"]


def test_words_and_faiss_follow_new_row_numbers(opened):
    pytest.importorskip("faiss", reason="the package faiss-cpu is not installed")
    search, faiss = TextSearch(opened), Approximate(opened.folder, "flat")

    def found():
        (words,) = search.search(["text of d2"], 1, mode="bm25")
        rows_found = faiss.search(opened.snapshot, ASKED, 1).rows
        return words[0].document.id, opened.document(int(rows_found[0, 0])).id

    assert found() == ("d2", "d2")
    opened.delete(["d0"])
    assert found() == ("d2", "d2")
    (file,) = opened.folder.glob("faiss-*")
    assert opened.compact() == 1
    assert not file.exists()  # it holds the embedding of d0
    assert found() == ("d2", "d2")
    assert faiss.search(opened.snapshot, ASKED, 9).rows.tolist() == [[1, 0]]
