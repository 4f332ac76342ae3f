"""Tests of corpus encoding and its locks."""

import contextlib
import dataclasses
import errno
import fcntl
import subprocess
import sys
import zlib

import numpy as np
import pytest

from endx_jax.data.documents import Document
from endx_jax.errors import EndxError, InUse
from endx_jax.numerics import Quantized
from endx_jax.retrieval import corpus_encoding
from endx_jax.retrieval.corpus_encoding import Claims, Encoding, begin, documents_left, encode_shards, survey
from endx_jax.retrieval.shards import MANIFEST, read_manifest

HOLDER = """
import pathlib, sys
from endx_jax.retrieval.corpus_encoding import Claims
with Claims(pathlib.Path(sys.argv[1])) as claims, claims.of(int(sys.argv[2])) as mine, claims.of_all():
    print(mine, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process, which has claimed part 3 and the whole."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path), "3"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "True\n"
        yield process
        process.kill()


def test_a_claim_of_another_process_is_respected_until_it_dies(tmp_path, holder):
    with Claims(tmp_path) as claims:
        for number, free in ((2, True), (3, False), (4, True)):
            with claims.of(number) as mine:
                assert mine == free
        holder.kill()
        holder.wait()
        with claims.of(3) as mine, claims.of_all():
            assert mine


def test_the_claim_of_a_whole_folder_is_not_waited_for_without_end(tmp_path, holder, monkeypatch):
    monkeypatch.setattr(corpus_encoding, "WAIT", 0.1)
    with Claims(tmp_path) as claims, pytest.raises(InUse, match="holds the lock .*/.claims"), claims.of_all():
        pass


def test_the_target_of_a_symbolic_link_is_not_used_as_a_lock(tmp_path):
    (tmp_path / ".claims").symlink_to("elsewhere")
    with pytest.raises(EndxError, match="can't write .*/.claims: it is a symbolic link; remove it"):
        Claims(tmp_path)
    assert not (tmp_path / "elsewhere").exists()


def test_a_claim_ends_with_its_block(tmp_path):
    command = [sys.executable, "-c", HOLDER, str(tmp_path), "3"]
    with Claims(tmp_path / "new" / "folder"), Claims(tmp_path) as claims:
        with claims.of(3) as mine:
            assert mine
            assert subprocess.check_output(command, stdin=subprocess.DEVNULL, text=True) == "False\n"
        assert subprocess.check_output(command, stdin=subprocess.DEVNULL, text=True) == "True\n"


def test_a_folder_without_locks_is_refused(tmp_path, monkeypatch):
    def no_locks(*arguments):
        raise OSError(errno.ENOLCK, "No locks available")

    (tmp_path / "file").touch()
    with pytest.raises(EndxError, match="can't write .*Not a directory|can't write .*File exists"):
        Claims(tmp_path / "file")
    with Claims(tmp_path) as claims:
        monkeypatch.setattr(fcntl, "lockf", no_locks)
        with pytest.raises(EndxError, match="can't be locked \\(No locks available\\): choose a folder"), claims.of(0):
            pass


def test_a_system_without_locks_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with pytest.raises(EndxError, match="needs POSIX locks, which Windows lacks"):
        Claims(tmp_path)


DOCUMENTS = [Document(f"d{n}", f"text {n}", {"n": n} if n % 3 else {}) for n in range(23)]


def encoding_of(documents=DOCUMENTS, **changes) -> Encoding:
    found = survey(documents)
    settings = {
        "model": {"name": "m", "identity": "1" * 64},
        "corpus": {"path": "c.jsonl", "documents": found.documents, "sha256": found.sha256},
        "width": 4,
        "precision": "float32",
        "metric": "cosine",
        "shard_size": 5,
    }
    return Encoding(**settings | changes)


def embed(texts) -> np.ndarray:
    return np.stack([np.random.default_rng(zlib.crc32(text.encode())).normal(size=4) for text in texts]).astype("f4")


def run(folder, encoding, encode=embed, read=lambda: iter(DOCUMENTS)) -> list[str] | None:
    """The shards that were encoded; None where the folder was finished."""
    with Claims(folder) as claims:
        if not begin(folder, claims, encoding):
            return None
        return [shard.name for shard in encode_shards(folder, claims, encoding, read, encode)]


def contents(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_corpus_becomes_an_index(tmp_path):
    assert run(tmp_path, encoding_of()) == ["00000", "00001", "00002", "00003", "00004"]
    manifest = read_manifest(tmp_path)
    assert [shard.documents for shard in manifest.shards] == [5, 5, 5, 5, 3]
    assert (manifest.width, manifest.precision, manifest.metric) == (4, "float32", "cosine")
    assert manifest.model == {"name": "m", "identity": "1" * 64}
    assert manifest.corpus["path"] == "c.jsonl"
    np.testing.assert_array_equal(
        np.load(tmp_path / "embeddings-00004.npy"), embed([f"text {n}" for n in (20, 21, 22)])
    )
    lines = (tmp_path / "documents-00004.jsonl").read_text().splitlines()
    assert lines[:2] == ['{"id": "d20", "text": "text 20", "metadata": {"n": 20}}', '{"id": "d21", "text": "text 21"}']
    assert run(tmp_path, encoding_of(), encode=None) is None


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_interrupted_anywhere_it_goes_on_to_the_same_bytes(tmp_path, monkeypatch, precision):
    """Runs end before their first file, after it, after the second... of what is missing, over and over."""

    def encode(texts):
        rows = embed(texts)
        return rows if precision == "float32" else Quantized(rows.astype(np.int8), rows[:, 0])

    encoding = encoding_of(precision=precision)
    run(tmp_path / "whole", encoding, encode)
    folder, real = tmp_path / "parts", corpus_encoding.write_shard.__globals__["replacing"]
    files_left = [0]

    @contextlib.contextmanager
    def mortal(path, *arguments):
        if not files_left[0]:
            (folder / f".{path.name}.abc").write_bytes(b"half of it")  # as a process leaves it that is killed
            raise KeyboardInterrupt
        files_left[0] -= 1
        with real(path, *arguments) as stream:
            yield stream

    monkeypatch.setitem(corpus_encoding.write_shard.__globals__, "replacing", mortal)
    interruptions = 0
    while True:
        files_left[0] = interruptions % 5
        try:
            run(folder, encoding, encode)
            break
        except KeyboardInterrupt:
            interruptions += 1
            assert not (folder / MANIFEST).exists()
    assert interruptions >= 4
    assert contents(folder) == contents(tmp_path / "whole")


def test_shards_of_other_processes_are_left_to_them(tmp_path, monkeypatch):
    encoding = encoding_of()
    run(tmp_path / "whole", encoding)
    taken = {1, 4}

    @contextlib.contextmanager
    def of(self, number):
        yield number not in taken

    with monkeypatch.context() as patch:
        patch.setattr(Claims, "of", of)
        assert run(tmp_path / "shared", encoding) == ["00000", "00002", "00003"]
        assert documents_left(tmp_path / "shared", encoding) == 8
        assert not (tmp_path / "shared" / MANIFEST).exists()
        # The process that had 1 dies while this one is busy with 4, and 1 is done after it.
        taken.clear()
        taken.add(1)

        def encode(texts):
            taken.clear()
            return embed(texts)

        assert run(tmp_path / "shared", encoding, encode) == ["00004", "00001"]
    assert contents(tmp_path / "shared") == contents(tmp_path / "whole")


def test_the_corpus_is_read_a_shard_at_a_time(tmp_path):
    read, when = [], []

    def documents():
        for document in DOCUMENTS:
            read.append(document.id)
            yield document

    def encode(texts):
        when.append(len(read))
        return embed(texts)

    run(tmp_path, encoding_of(), encode, documents)
    assert when == [5, 10, 15, 20, 23]


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"model": {"name": "m", "identity": "2" * 64}}, "model m (identity 111111111111) and not m (identity 2222"),
        ({"shard_size": 6, "precision": "int8"}, "precision float32 and not int8; of shard size 5 and not 6"),
        ({"width": 3}, "width 4 and not 3"),
    ],
)
@pytest.mark.parametrize("finished", [True, False])
def test_files_of_another_encoding_are_refused(tmp_path, change, difference, finished):
    with Claims(tmp_path) as claims:
        begin(tmp_path, claims, encoding_of())
    if finished:
        run(tmp_path, encoding_of())
    before = contents(tmp_path)
    with pytest.raises(EndxError) as refusal:
        run(tmp_path, encoding_of(**change))
    assert difference in str(refusal.value)
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    "changed",
    [
        DOCUMENTS[:-1],
        [*DOCUMENTS[1:], DOCUMENTS[0]],
        [dataclasses.replace(DOCUMENTS[0], id="e"), *DOCUMENTS[1:]],
        [dataclasses.replace(DOCUMENTS[0], text="e"), *DOCUMENTS[1:]],
        [dataclasses.replace(DOCUMENTS[0], metadata={"e": 1}), *DOCUMENTS[1:]],
    ],
)
def test_another_corpus_is_refused(tmp_path, changed):
    run(tmp_path, encoding_of())
    with pytest.raises(EndxError, match=r"it has corpus c.jsonl \(23 documents, sha256 .* and not c.jsonl \(2"):
        run(tmp_path, encoding_of(changed))


def test_another_name_for_the_same_is_no_difference(tmp_path):
    run(tmp_path, encoding_of())
    same = encoding_of()
    same = dataclasses.replace(same, model=same.model | {"name": "n"}, corpus=same.corpus | {"path": "p"})
    assert run(tmp_path, same) is None


def test_an_index_from_elsewhere_is_left_alone(tmp_path):
    (tmp_path / MANIFEST).write_text("{}")
    with pytest.raises(EndxError, match="contains an index that `endx encode` did not make"):
        run(tmp_path, encoding_of())
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "encoding.json").write_text('{"model": ')
    with pytest.raises(EndxError, match="encoding.json, column 11: broken JSON"):
        run(tmp_path / "broken", encoding_of())


def test_a_corpus_that_shrinks_meanwhile_is_refused(tmp_path):
    with pytest.raises(EndxError, match="is shorter than when it was first read"):
        run(tmp_path, encoding_of(), read=lambda: iter(DOCUMENTS[:12]))
    assert run(tmp_path, encoding_of()) == ["00002", "00003", "00004"]
