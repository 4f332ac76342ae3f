import concurrent.futures
import errno
import os
import pathlib
import resource
import sys

import pytest
from helpers import one_line_error, raising, status_of_fork
from refusals import check_refusal

from endx_jax import files, load
from endx_jax.errors import DiskFull
from endx_jax.files import AppendOnlyFile, expanded, replace_folder, reporting_full_disk, staging_folder, write_text
from endx_jax.index.corpus_encoding import encode_corpus
from endx_jax.parallel.environment import use_compilation_cache

FULL = pathlib.Path("/dev/full")  # a device that has no space left, ever


def test_caches_are_where_the_environment_says(variables):
    variables(HOME="/home/of/tests", XDG_CACHE_HOME=None)
    assert expanded("~/.cache/endx_jax") == pathlib.Path("/home/of/tests/.cache/endx_jax")
    variables(XDG_CACHE_HOME="/caches")
    assert expanded("~/.cache/endx_jax") == pathlib.Path("/caches/endx_jax")
    assert expanded("~/.cached") == pathlib.Path("/home/of/tests/.cached")
    assert expanded("/data/.cache") == pathlib.Path("/data/.cache")


def test_without_a_home_folder_nothing_is_cached_and_what_needs_it_names_the_variables(variables, monkeypatch, caplog):
    variables(HOME=None, XDG_CACHE_HOME=None)
    monkeypatch.setattr("pwd.getpwuid", raising(KeyError))  # no entry in /etc/passwd
    use_compilation_cache("~/.cache/endx_jax/xla")
    assert caplog.messages == ["no home folder is known: nothing is cached; set HOME or XDG_CACHE_HOME"]
    with pytest.warns(UserWarning, match="nothing is cached for the next run: .* set data.cache to a writable folder"):
        files.write_cache(files.cache_folder("~/.cache/endx_jax/data") / "name", print)
    check_refusal(lambda: load("~/model"), "~/model", "XDG_CACHE_HOME")
    check_refusal(lambda: encode_corpus("model", "corpus.jsonl"), "XDG_CACHE_HOME", "output=FILE")


def test_a_full_disk_is_one_line_with_the_file_and_what_to_do(tmp_path):
    message = f"can't write {tmp_path}: No space left on device; free some space and run the same command to resume"
    with one_line_error(message), reporting_full_disk(tmp_path):
        raise OSError(errno.ENOSPC, "No space left on device")
    with one_line_error("can't write .*: Disk quota exceeded"), reporting_full_disk(tmp_path):
        raise OSError(errno.EDQUOT, "Disk quota exceeded")
    with one_line_error("can't write .*: No space left on device; free"), reporting_full_disk(tmp_path):
        raise ValueError("RESOURCE_EXHAUSTED: Error writing 'd/1': [OS error 28: ENOSPC No space left on device]")


@pytest.mark.parametrize("failure", [OSError(errno.EACCES, "Permission denied"), ValueError("no"), KeyError("space")])
def test_other_failures_are_left_alone(tmp_path, failure):
    with pytest.raises(type(failure)) as caught, reporting_full_disk(tmp_path):
        raise failure
    assert caught.value is failure


def test_a_file_that_cannot_be_written_whole_is_left_as_it_was(tmp_path):
    file = tmp_path / "file"
    write_text(file, "old")
    message = f"can't write {file}: No space left"
    with pytest.raises(DiskFull, match=message), files.replacing(file, "wb"), open(FULL, "wb") as full:
        full.write(b"new")
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_file_or_folder_that_cannot_be_put_in_place_leaves_the_old_one(tmp_path):
    with one_line_error("can't write .*: it is a folder; name a file"), files.replacing(tmp_path):
        raise AssertionError("the block must not run")
    assert not [*tmp_path.parent.glob(f".{tmp_path.name}.*")]
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "file").write_text("old")
    with pytest.raises(FileNotFoundError):
        replace_folder(tmp_path / "missing", folder)
    assert (folder / "file").read_text() == "old"
    assert [*tmp_path.iterdir()] == [folder]


def test_a_pipe_is_written_to_and_of_a_link_the_target_is_not(tmp_path):
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_text(pipe, "new")
    assert (pipe.is_fifo(), os.read(reader, 9)) == (True, b"new")
    os.close(reader)
    (tmp_path / "file").write_text("old")
    link.symlink_to("file")
    write_text(link, "new")
    assert (link.is_symlink(), link.read_text(), (tmp_path / "file").read_text()) == (False, "new", "old")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["file", "link", "pipe"]


def test_what_is_written_to_standard_output_follows_what_was_printed(tmp_path):
    def write():
        os.dup2(os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT), 1)
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 (of a process that ends)
        print("before")
        write_text(pathlib.Path("/dev/stdout"), "written\n")
        print("after", flush=True)

    assert status_of_fork(write) == 0
    assert (tmp_path / "file").read_text() == "before\nwritten\nafter\n"


def test_a_growing_file_hands_everything_over_at_once(tmp_path, monkeypatch):
    file, synced = tmp_path / "folder" / "file", []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(file.read_bytes()))
    growing = AppendOnlyFile(file)
    growing.add(b"one\n")
    assert file.read_bytes() == b"one\n"
    growing.add(b"two\n", sync=True)
    growing.close()
    assert synced == [b"one\ntwo\n"]
    growing = AppendOnlyFile(file)
    growing.add(b"three\n")
    growing.close()
    assert file.read_bytes() == b"one\ntwo\nthree\n"


def test_a_growing_file_on_a_full_disk_fails_once(tmp_path):
    (tmp_path / "full").symlink_to(FULL)
    growing = AppendOnlyFile(tmp_path / "full")
    check_refusal(lambda: growing.add(b"line\n"), f"{tmp_path}/full", "No space left")
    growing.close()


def test_what_a_full_disk_left_of_a_write_is_cut_off(tmp_path, monkeypatch):
    growing = AppendOnlyFile(tmp_path / "file")
    growing.add(b"one\n")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6, limits[1]))  # the kernel writes two of four bytes
    try:
        with pytest.raises(OSError, match="File too large"):
            growing.add(b"two\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", raising(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
        check_refusal(lambda: growing.add(b"three\n", sync=True), "No space left")
    growing.add(b"four\n")
    growing.close()
    assert (tmp_path / "file").read_bytes() == b"one\nfour\n"


@pytest.mark.parametrize(("renames", "expected"), [(0, "old"), (1, "old"), (2, "new")])
def test_killed_anywhere_a_folder_is_there_at_the_next_write_and_nothing_is_left_beside_it(tmp_path, renames, expected):
    folder, rename, left = tmp_path / "folder", os.rename, [renames]
    folder.mkdir()
    (folder / "file").write_text("old")
    (tmp_path / ".folder.backup").mkdir()  # somebody else's

    def mortal(*arguments):
        if not left[0]:
            os._exit(7)
        left[0] -= 1
        rename(*arguments)

    def replace():
        os.rename = mortal
        with staging_folder(folder) as fresh:
            (fresh / "file").write_text("new")
            replace_folder(fresh, folder)

    assert status_of_fork(replace) == (7 if renames < 2 else 0)
    with staging_folder(folder) as other, staging_folder(folder) as fresh:  # one that is in use is left alone
        assert (folder / "file").read_text() == expected
        assert len([*tmp_path.iterdir()]) == 4
        (fresh / "file").write_text("newest")
        replace_folder(fresh, folder)
        assert other.is_dir()
    assert (folder / "file").read_text() == "newest"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [".folder.backup", "folder"]


@pytest.mark.parametrize("path", [".", "..", "/"])
def test_a_folder_without_a_name_is_not_replaced(path):
    check_refusal(lambda: staging_folder(pathlib.Path(path)).__enter__(), path, "name a folder")


def test_two_who_stage_at_once_leave_each_other_alone(tmp_path):
    def stage(_):
        with staging_folder(tmp_path / "folder") as fresh:
            (fresh / "file").write_text("new")

    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        assert [*threads.map(stage, range(400))] == [None] * 400
    assert [*tmp_path.iterdir()] == []


def test_everybody_may_read_files_and_folders_and_their_locks_are_left(tmp_path):
    write_text(tmp_path / "file", "new")
    handles = os.listdir("/proc/self/fd")
    with staging_folder(tmp_path / "folder") as fresh:
        replace_folder(fresh, tmp_path / "folder")
    assert os.listdir("/proc/self/fd") == handles
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("file", "folder")] == [0o644, 0o755]
