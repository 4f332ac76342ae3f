"""Caches beside an index: what is searched by them is what is searched without them."""

import itertools
import os
import shutil

import numpy as np
import pytest
from helpers import raising

from endx_jax.data.sets.documents import Document
from endx_jax.index import cache
from endx_jax.index.index import Index, write_index
from endx_jax.numerics import quantize, signs, unit_rows
from endx_jax.ranking.words import WordTokenizer

NAMES = ("vectors", "words")
WORDS = [f"word{n}" for n in range(30)]
QUESTIONS = ["word1 word2 word2", "word3 only17x", "word4 only3x word5"]


def made(numbers, seed: int = 0) -> list[Document]:
    draw = np.random.default_rng([seed, *numbers])
    return [Document(f"d{n}", f"{' '.join(draw.choice(WORDS, 6))} only{n}x", {}, (f"known{n}x?",)) for n in numbers]


def vectors_of(documents) -> np.ndarray:
    draws = [np.random.default_rng([*document.text.encode()]) for document in documents]
    return unit_rows(np.stack([draw.integers(-4, 5, 16) for draw in draws]).astype(np.float32))


@pytest.fixture
def binary():
    return False


@pytest.fixture(autouse=True)
def small_indexes_have_caches(monkeypatch):
    monkeypatch.setattr(cache, "FEWEST", 50)


@pytest.fixture
def path(tmp_path, binary):
    documents = made(range(100))
    known, path = vectors_of(documents) + 1, tmp_path / "i.sqlite"
    about = {"metric": "cosine", "model": {"name": "m", "identity": "1"}, "language": "english", "binary": binary}
    write_index(path, vectors_of(documents), documents, known=known, **about)
    return path


def add(index, documents) -> None:
    index.add(documents, vectors_of(documents), known=vectors_of(documents) + 1, replace=True)


def found(index: Index) -> list:
    """All that is found, with scores."""
    questions = np.arange(48, dtype=np.float32).reshape(3, 16) - 20
    of = [index.search(QUESTIONS, 20, mode=mode, embeddings=questions) for mode in ("dense", "bm25", "hybrid")]
    return [[(answer.document, answer.score) for answer in answers] for mode in of for answers in mode]


def check(path, index: Index) -> None:
    """Compares an open index with one that is opened, and with one made of the same documents without caches."""
    bm25s = pytest.importorskip("bm25s")
    expected = found(index)
    assert found(Index(path)) == expected
    documents = [document for _, document in index.snapshot]
    words = WordTokenizer()([" ".join([document.text, *document.questions]) for document in documents])
    twin = bm25s.BM25(method="lucene", k1=0.9, b=0.4)
    twin.index(words, show_progress=False)
    for question, answers in zip(QUESTIONS, expected[3:6], strict=True):
        scores = twin.get_scores([word for word in WordTokenizer()([question])[0] if word in twin.vocab_dict])
        best = [n for n in np.argsort(-scores, kind="stable")[:20].tolist() if scores[n] > 0]
        assert [document for document, _ in answers] == [documents[n] for n in best]
        scales = scores[best] / [score for _, score in answers]  # the root of the question's highest possible score
        np.testing.assert_allclose(scales, scales[0], rtol=1e-6)


@pytest.mark.parametrize("binary", [False, True])
def test_searches_follow_additions_and_deletions_as_an_index_without_caches(path, monkeypatch):
    index = Index(path)
    check(path, index)
    assert all((path.parent / f"i.sqlite.{name}").stat().st_size for name in NAMES)
    for step in range(6):
        add(index, made(range(90 + 20 * step, 130 + 20 * step), step))
        index.delete([f"d{n}" for n in range(25 * step, 25 * step + 20)], missing_ok=True)
        assert len(index.snapshot.living) <= 2 * len(index)
        check(path, index)
    index.delete([document.id for _, document in index.snapshot][:-20])  # rows are numbered again
    check(path, index)
    assert index.snapshot.generation > 0
    with monkeypatch.context() as patch:
        patch.setattr(cache.os, "access", lambda path, mode: False)
        expected = found(index)
        for name in NAMES:
            (path.parent / f"i.sqlite.{name}").unlink()
        assert found(Index(path)) == expected
    assert {file.name for file in path.parent.iterdir()} <= {"i.sqlite", "i.sqlite-shm", "i.sqlite-wal"}


def test_embeddings_are_mapped_and_not_read(path):
    Index(path)
    snapshot = Index(path).snapshot
    mapped = snapshot.embeddings[:]
    assert not mapped.flags.writeable
    while not isinstance(mapped, np.memmap):
        mapped = mapped.base
    np.testing.assert_array_equal(snapshot.vectors(0, 100), vectors_of(made(range(100))))


def lines(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "endx_jax"]


DAMAGES = [*itertools.product(NAMES, ["cut", "foreign", "version", "header", "restored"]), ("words", "tokenizer")]


@pytest.mark.parametrize(("name", "damage"), DAMAGES)
def test_a_cache_that_does_not_fit_is_made_anew_with_one_line(path, caplog, name, damage):
    copy = shutil.copy(path, path.parent / "copy")
    add(index := Index(path), made(range(90, 260), 1))
    check(path, index)
    file = path.parent / f"i.sqlite.{name}"
    caplog.clear()
    if damage == "restored":
        del index
        for log in path.parent.glob("i.sqlite-*"):
            log.unlink()
        os.replace(copy, path)
        add(Index(path), made(range(90, 260), 2))
    else:
        contents = file.read_bytes()
        kinds = {"cut": contents[:-64], "foreign": b"foreign", "version": contents.replace(b': 2, "id', b': 1, "id')}
        kinds["tokenizer"] = contents.replace(b"1, PyStemmer", b"0, PyStemmer")
        file.write_bytes({**kinds, "header": b'{"version": 2, "arrays": [7]}\n' + contents}[damage])
    check(path, Index(path))
    assert [line for line in lines(caplog) if str(file) in line] == [
        f"{file} is damaged, or of another version or state of the index: it is made anew"
    ]
    caplog.clear()
    check(path, Index(path))
    assert not lines(caplog)


@pytest.mark.parametrize("later", [[], ["d9"], ["d9", "d8"]])
def test_an_index_that_is_restored_from_a_copy_before_a_deletion_has_all_its_documents(path, caplog, later):
    check(path, index := Index(path))
    copy = shutil.copy(path, path.parent / "copy")
    index.delete(["d17"])
    add(index, made([3]))
    check(path, index)
    os.replace(copy, path)
    for log in path.parent.glob("i.sqlite-*"):
        log.unlink()
    for one in later:  # deletions with the numbers of those that the copy does not have
        Index(path).delete([one])
    check(path, restored := Index(path))
    embedding = vectors_of(made(range(100)))[17:18]
    for mode in ("dense", "bm25"):
        ((first,),) = restored.search(["only17x"], 1, mode=mode, embeddings=embedding)
        assert first.document.id == "d17"
    caplog.clear()
    check(path, Index(path))
    assert not lines(caplog)


@pytest.mark.parametrize("name", NAMES)
def test_a_cache_that_another_process_puts_in_its_place_at_once_changes_no_search(path, monkeypatch, name):
    expected = found(Index(path))
    documents = made(range(300))[::-1]
    other, file = path.parent / f"other.{name}", path.parent / f"i.sqlite.{name}"
    about = {"known": vectors_of(documents), "metric": "cosine", "model": {}}
    write_index(other.with_name("other"), vectors_of(documents), documents, **about)
    found(Index(other.with_name("other")))
    file.unlink()
    # The other's file comes after the last step of this process.
    monkeypatch.setattr(cache.shutil, "copymode", lambda *_: os.path.exists(other) and os.replace(other, file))
    size = other.stat().st_size
    assert found(Index(path)) == expected
    assert file.stat().st_size == size


@pytest.mark.parametrize("step", ["os.replace", "shutil.copymode"])
def test_a_cache_that_can_not_be_put_in_its_place_is_in_memory(path, monkeypatch, step):
    expected = found(Index(path))
    for name in NAMES:
        (path.parent / f"i.sqlite.{name}").unlink()
    monkeypatch.setattr(f"endx_jax.index.cache.{step}", raising(OSError("gone")))
    assert found(Index(path)) == expected


def test_signs_are_mapped_and_those_of_deleted_documents_are_overwritten(tmp_path):
    vectors = np.random.default_rng(0).standard_normal((100, 64)).astype(np.float32)
    documents = [Document(f"d{n}", "") for n in range(100)]
    write_index(tmp_path / "i", vectors, documents, metric="cosine", model={}, binary=True)
    index, codes = Index(tmp_path / "i"), quantize(vectors, np).codes
    bits = signs(codes)
    for some in (bits, codes):
        assert some[17].tobytes() in (tmp_path / "i.vectors").read_bytes()
    index.delete(["d17"])
    for some in (bits, codes):
        assert some[17].tobytes() not in (tmp_path / "i.vectors").read_bytes()
    snapshot = Index(tmp_path / "i").snapshot
    assert not snapshot.signs[:].flags.writeable
    np.testing.assert_array_equal(snapshot.signs[:][snapshot.living], np.delete(bits, 17, axis=0))


def test_a_deleted_document_leaves_the_caches(path):
    index = Index(path)
    found(index)
    vector = vectors_of(made(range(100)))[17]
    files = [path.parent / f"i.sqlite.{name}" for name in NAMES]
    assert vector.tobytes() in files[0].read_bytes()
    assert b"only17x" in files[1].read_bytes()
    index.delete(["d17"])
    assert vector.tobytes() not in files[0].read_bytes()
    assert b"only17x" not in files[1].read_bytes()
    assert b"only18x" in files[1].read_bytes()
    check(path, Index(path))
    index.delete(["d19"])
    add(index, made(range(300, 400)))  # so many that the caches are made anew, that of words from counts in memory
    found(index)
    assert b"only399x" in files[1].read_bytes()
    assert b"only19x" not in files[1].read_bytes()
    check(path, Index(path))


@pytest.mark.parametrize("steps", [0, 1])
def test_what_a_killed_process_did_not_overwrite_is_overwritten_at_the_next_opening(path, monkeypatch, steps):
    found(index := Index(path))
    vector, mapped, left = vectors_of(made(range(100)))[17], cache._mapped, [steps]

    class Killed(BaseException):
        pass

    def mortal(file, mode="r"):
        if mode == "r+" and not left[0]:
            raise Killed
        left[0] -= mode == "r+"
        return mapped(file, mode)

    with monkeypatch.context() as patch:
        patch.setattr(cache, "_mapped", mortal)
        with pytest.raises(Killed):
            index.delete(["d17"])
    check(path, Index(path))
    assert vector.tobytes() not in (path.parent / "i.sqlite.vectors").read_bytes()
    assert b"only17x" not in (path.parent / "i.sqlite.words").read_bytes()
