import errno
import pathlib

import pytest
from helpers import one_line_error

from endx_jax.files import Growing, replacing, reporting_full_disk, write_text

FULL = pathlib.Path("/dev/full")  # a device that has no space left, ever


def test_a_full_disk_is_one_line_with_the_file_and_what_to_do(tmp_path):
    message = f"can't write {tmp_path}: No space left on device; make room there, and the same command goes on"
    with one_line_error(message), reporting_full_disk(tmp_path):
        raise OSError(errno.ENOSPC, "No space left on device")
    with one_line_error("can't write .*: Disk quota exceeded"), reporting_full_disk(tmp_path):
        raise OSError(errno.EDQUOT, "Disk quota exceeded")


def test_what_libraries_make_of_it_is_understood(tmp_path):
    with one_line_error("can't write .*: No space left on device; make"), reporting_full_disk(tmp_path):
        raise ValueError("RESOURCE_EXHAUSTED: Error writing 'd/1': [OS error 28: ENOSPC No space left on device]")


@pytest.mark.parametrize("failure", [OSError(errno.EACCES, "Permission denied"), ValueError("no"), KeyError("space")])
def test_other_failures_are_left_alone(tmp_path, failure):
    with pytest.raises(type(failure)) as caught, reporting_full_disk(tmp_path):
        raise failure
    assert caught.value is failure


def test_a_file_that_cannot_be_written_whole_is_left_as_it_was(tmp_path):
    file = tmp_path / "file"
    write_text(file, "old")
    with one_line_error(f"can't write {file}: No space left"), replacing(file, "wb"), open(FULL, "wb") as full:
        full.write(b"new")
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_growing_file_hands_everything_over_at_once(tmp_path):
    file = tmp_path / "folder" / "file"
    growing = Growing(file)
    growing.add(b"one\n")
    assert file.read_bytes() == b"one\n"
    growing.add(b"two\n")
    growing.close()
    growing = Growing(file)
    growing.add(b"three\n")
    growing.close()
    assert file.read_bytes() == b"one\ntwo\nthree\n"


def test_a_growing_file_on_a_full_disk_fails_once(tmp_path):
    (tmp_path / "full").symlink_to(FULL)
    growing = Growing(tmp_path / "full")
    with one_line_error(f"can't write {tmp_path}/full: No space left"):
        growing.add(b"line\n")
    growing.close()
