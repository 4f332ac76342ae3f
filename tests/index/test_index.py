import contextlib
import shutil
import sqlite3
import threading
import time
import tracemalloc
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import check_refusal
from small_index import DOCUMENTS, EMBEDDINGS, MODEL, make_index

from endx_jax.data.sets.documents import Document
from endx_jax.errors import DiskFull, EndxError, InUse, ReadOnly
from endx_jax.files import expanded, write_text
from endx_jax.index import index_file
from endx_jax.index import snapshot as snapshots_module
from endx_jax.index.index import Index, write_index
from endx_jax.index.index_file import COSINE, INNER_PRODUCT
from endx_jax.index.index_model import IndexModel, check_model
from endx_jax.inference.manifest import MANIFEST
from endx_jax.inference.manifest import MODEL as FOLDER
from endx_jax.numerics import quantize

OTHER = {"name": "other", "identity": "2"}
NEW = Document("new", "")
NUMBERS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c LIMIT 100000) SELECT"
ASKED = np.float32([[1, 0], [-1, 0]])


def ids(index, question=0, k=10):
    """What is found for a question, best first."""
    state = index.snapshot
    rows = state.corpus.search(ASKED, k).rows[question].tolist()
    documents = state.documents(rows)
    return [documents[row].id for row in rows]


def names(path):
    return [document.id for _, document in Index(path).snapshot]


@pytest.fixture
def path(tmp_path):
    return make_index(tmp_path / "folder" / "index.sqlite").path


@pytest.fixture
def opened(path) -> Index:
    return Index(path)


def test_an_index_is_read_as_it_was_written_and_by_any_sqlite_client(opened, path):
    assert len(opened) == 3
    info = opened.snapshot.info
    assert (info.width, info.precision, info.metric, info.model) == (2, "float32", INNER_PRODUCT, MODEL)
    assert [document for _, document in opened.snapshot] == DOCUMENTS
    found = opened.snapshot.corpus.search(ASKED, 2)
    np.testing.assert_array_equal(found.rows, [[2, 1], [0, 1]])
    np.testing.assert_array_equal(found.scores, [[5, 3], [-1, -3]])
    with contextlib.closing(sqlite3.connect(path)) as database:
        of_year = database.execute("SELECT id FROM documents WHERE json_extract(metadata, '$.year') = 3").fetchall()
        (blob,) = database.execute("SELECT embedding FROM passages WHERE document = 3").fetchone()
    assert of_year == [("d1",)]
    np.testing.assert_array_equal(np.frombuffer(blob, "<f4"), EMBEDDINGS[2])
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("ANALYZE")
    assert names(path) == ["d0", "d1", "d2"]


def test_the_memory_to_open_an_index_does_not_grow_with_its_deletions(path):
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute(f"INSERT INTO deleted (row, id) {NUMBERS} x + 1000, 'document ' || x FROM c")
    tracemalloc.start()
    try:
        opened = Index(path)
        assert tracemalloc.get_traced_memory()[1] < 5e6
    finally:
        tracemalloc.stop()
    opened.delete(["d0"])
    assert ids(opened) == ["d2", "d1"]


def test_a_newer_index_replaces_the_old_one_also_where_it_is_open(path, opened):
    make_index(path, EMBEDDINGS[:2] + 1, DOCUMENTS[:2])
    for index in (opened, Index(path)):
        np.testing.assert_array_equal(index.snapshot.vectors(0, 2), EMBEDDINGS[:2] + 1)
        assert ids(index) == ["d1", "d0"]
    make_index(path, model=OTHER)
    check_refusal(lambda: opened.snapshot, str(path), "another model", "open it again")


def test_only_the_model_that_encoded_it_may_search_it(opened, tmp_path):
    check_model(opened, types.SimpleNamespace(name="moved", identity=MODEL["identity"], teacher=""))
    other = types.SimpleNamespace(name="other", identity="ba9876543210fedc", teacher=MODEL["identity"])
    check_model(opened, other, to_search=True)
    check_refusal(lambda: check_model(opened, other), "m (identity 111111111111)", "other (ba9876543210)")
    unknown = make_index(tmp_path / "unknown", model=MODEL | {"identity": ""})
    check_refusal(lambda: check_model(unknown, other, to_search=True), "m (identity )", "other")


@pytest.mark.parametrize("precision", ["float32", "float16", "int8", "binary"])
def test_added_documents_are_found_here_and_when_it_is_opened_again(tmp_path, precision):
    whole = quantize(jnp.asarray(EMBEDDINGS))
    stored = type(whole)(*map(np.asarray, whole)) if precision == "int8" else EMBEDDINGS
    stored = stored.astype(precision) if precision == "float16" else stored
    index = make_index(tmp_path / "index", stored, binary=precision == "binary")
    assert ids(index) == ["d2", "d1", "d0"]
    index.add([Document("d3", "vier", {"a": 1}), Document("d4", "fünf")], np.float32([[4.1, 0], [99, 0]]))
    for found in (index, Index(index.path)):
        assert (len(found), found.snapshot.info.precision) == (5, precision)
        assert ids(found) == ["d4", "d2", "d3", "d1", "d0"]
        assert found.get("d3") == Document("d3", "vier", {"a": 1})
    # 4.1 in float16 is 4.1015625; in int8 it is 127 times the scale.
    np.testing.assert_allclose(index.snapshot.vectors(3, 4), [[4.1015625 if precision == "float16" else 4.1, 0]], 1e-6)


def test_deleted_documents_are_not_found_here_nor_when_it_is_opened_again(opened):
    before = opened.snapshot
    assert opened.get("d1\0x") is None
    assert opened.delete(["d1\0x", "d1"], missing_ok=True) == 1
    for found in (opened, Index(opened.path)):
        assert ids(found) == ["d2", "d0"]
        assert (len(found), "d1" in found, "d2" in found) == (2, False, True)
        assert (found.get("d1"), found.get("d2")) == (None, DOCUMENTS[2])
        assert [document.id for _, document in found.snapshot] == ["d0", "d2"]
    assert before.documents([0, 1]) == {0: DOCUMENTS[0]}
    assert before.ids_of([0, 1]) == {0: "d0", 1: "d1"}
    opened.add([Document("d1", "again")], np.float32([[9, 9]]))
    assert ids(Index(opened.path)) == ["d1", "d2", "d0"]


def test_an_id_with_a_nul_is_read_and_deleted(tmp_path):
    index = make_index(tmp_path / "i", documents=[Document(name, "") for name in ("a", "a\0b", "")])
    assert (index.get("a\0b").id, index.snapshot.rows_of(["a\0b", "a\0"])) == ("a\0b", {"a\0b": 1})
    assert (index.delete(["a\0b", ""]), names(index.path)) == (2, ["a"])


def test_a_string_is_one_id(tmp_path):
    index = make_index(tmp_path / "i", np.ones((13, 2), np.float32), [Document(f"{n}", "") for n in range(13)])
    assert index.delete("12") == 1
    assert names(index.path) == [f"{n}" for n in range(12)]


@pytest.mark.parametrize("precision", ["float32", "float16", "int8"])
def test_embeddings_of_a_cosine_get_unit_norm_and_those_that_have_it_are_not_touched(tmp_path, precision):
    raw, unit = np.float32([[3, 4], [0, 0], [0.6, 0.8]]), np.float32([[0.6, 0.8], [0, 0], [0.6, 0.8]])
    given = quantize(raw, np) if precision == "int8" else raw.astype(precision)
    documents = [Document(f"{n}", "", {}, ("?",) * (n == 2)) for n in range(3)]
    index = make_index(tmp_path / "i", given, documents, known=raw[:1], metric=COSINE)
    expected = quantize(unit, np).codes if precision == "int8" else unit.astype(precision)
    np.testing.assert_array_equal(index.snapshot.embeddings[:][1:], expected[1:])
    index.add([Document("3", "")], raw[:1])
    index.add([Document("4", "", {}, ("?",))], quantize(raw[:1], np), known=quantize(raw[:1], np))
    np.testing.assert_allclose(index.snapshot.vectors(0, 5), unit[[0, 1, 2, 0, 0]], atol=0.005)
    np.testing.assert_allclose(index.snapshot.known.vectors(0, 2), unit[[0, 0]], atol=0.005)
    found = index.search("?", mode="dense", embeddings=10 * raw[:1])
    assert [answer.score for answer in found] == pytest.approx([1, 1, 1, 1, 0], abs=0.01)


def test_one_document_an_iterable_numbers_of_numpy_and_a_path_of_text_are_taken(tmp_path):
    write_index(str(tmp_path / "i"), EMBEDDINGS, iter(DOCUMENTS), metric=INNER_PRODUCT, model=MODEL)
    index = Index(tmp_path / "i")
    index.add(Document("a", "", {"year": np.int64(3), "open": np.bool_(True)}), EMBEDDINGS[:1])
    index.add((Document(name, "") for name in "bc"), [[1.0, 2.0], [3.0, 4.0]])
    assert names(index.path) == ["d0", "d1", "d2", "a", "b", "c"]
    assert index.get("a").metadata == {"year": 3, "open": True}


def test_deleted_texts_and_embeddings_leave_the_file(opened):
    opened.add([Document("new", "a very secret text")], np.float32([[0.123, 0.321]]))
    embedding = np.float32([0.123, 0.321]).tobytes()

    def stored() -> bytes:
        return b"".join(file.read_bytes() for file in opened.path.parent.iterdir())

    assert (b"very secret" in stored(), embedding in stored()) == (True, True)
    opened.delete(["new"])
    assert (b"very secret" in stored(), embedding in stored()) == (False, False)


def test_copies_from_buckets_and_indexes_of_a_corpus_s_content_are_not_changed(tmp_path):
    caches = expanded("~/.cache/endx_jax")
    copy = make_index(caches / "buckets" / "files" / "s3" / "bucket" / "index.sqlite")
    for change in (lambda: copy.add([Document("new", "x")], EMBEDDINGS[:1]), lambda: copy.delete(["d0"])):
        check_refusal(change, "index.sqlite", "bucket", "a file of your own")
    cached = make_index(caches / "indexes" / "a.sqlite").path
    (tmp_path / "link").symlink_to(cached)
    for path in (cached, tmp_path / "link"):
        check_refusal(lambda path=path: Index(path).delete(["d0"]), str(path), "change that corpus", kind=ReadOnly)


def test_a_later_version_of_an_index_in_a_bucket_is_opened_in_place(tmp_path, monkeypatch):
    made = [{}, {"embeddings": EMBEDDINGS[:1], "documents": DOCUMENTS[:1]}, {"model": OTHER}]
    versions = [make_index(tmp_path / f"{n}", **about).path for n, about in enumerate(made)]
    write_text(tmp_path / FOLDER / MANIFEST, "{}")  # of an old copy of the run
    monkeypatch.setattr("endx_jax.index.index.local_copy", lambda path, by_version: versions[0])
    index = Index("gs://bucket/index.sqlite")
    assert IndexModel(index).source == MODEL["name"]
    before = index.snapshot
    for expected in (["d2", "d1", "d0"], ["d0"]):
        index.reopen()
        assert ids(index) == expected
        versions.pop(0)
    check_refusal(index.reopen, "another model", "open it again")
    assert ids(index) == ["d0"]
    assert before.documents([2])[2].id == "d2"  # a search that began before it
    assert index.snapshot.generation == 1


def test_two_first_searches_send_the_embeddings_once(opened, monkeypatch):
    sent, corpus = [], snapshots_module.Corpus

    def slow(*arguments, **options):
        sent.append(1)
        time.sleep(0.1)
        return corpus(*arguments, **options)

    monkeypatch.setattr(snapshots_module, "Corpus", slow)
    threads = [threading.Thread(target=lambda: opened.snapshot.corpus.search(ASKED, 1)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(sent) == 1


def test_a_snapshot_keeps_its_state_while_documents_are_added(opened):
    snapshots = []
    for n in range(9):
        snapshots.append((opened.snapshot, opened.snapshot.corpus.search(ASKED, 50).rows.tolist()))
        opened.add([Document(f"n{n}", "")], np.float32([[n % 7, 1]]))
    for n, (snapshot, rows) in enumerate(snapshots):
        assert snapshot.corpus.search(ASKED, 50).rows.tolist() == rows
        assert len(snapshot.vectors(0, 50)) == len(snapshot) == 3 + n


@pytest.mark.parametrize("resident", [True, False])
def test_search_is_that_of_the_rows_that_are_left(tmp_path, monkeypatch, resident):
    rng = np.random.default_rng(0)
    questions, rows = (rng.integers(-3, 4, (n, 8)).astype(np.float32) for n in (9, 900))
    documents = [Document(str(n), f"text {n}", {"n": n}) for n in range(900)]
    monkeypatch.setattr("jax.local_devices", jax.devices)  # all eight
    if not resident:
        monkeypatch.setattr("endx_jax.index.snapshot.fits", lambda size: False)
    index = make_index(tmp_path / "index", rows[:100], documents[:100])
    for a, b in [(100, 612), (612, 613), (613, 900)]:
        index.snapshot.corpus.search(questions, 20)
        index.add(documents[a:b], rows[a:b])
    assert index.delete(["0", "611", "612", "none"], missing_ok=True) == 3
    for where, kept in ((None, np.arange(900)), ({"n": {"gte": 450, "lt": 850}}, np.arange(450, 850))):
        kept = np.setdiff1d(kept, [0, 611, 612])
        state, scores = index.snapshot, questions @ rows[kept].T
        found = state.corpus.search(questions, 20, state.where(where))
        best = np.argsort(-scores, axis=1, kind="stable")[:, :20]
        np.testing.assert_array_equal(found.rows, kept[best])
        np.testing.assert_array_equal(found.scores, np.take_along_axis(scores, best, axis=1))
    kept = np.setdiff1d(np.arange(900), [0, 611, 612]).tolist()
    assert [*index.snapshot] == [(row, documents[row]) for row in kept]
    np.testing.assert_array_equal(index.snapshot.vectors(0, 900)[kept], rows[kept])


@pytest.mark.parametrize("mode", ["WAL", "DELETE"])  # a copy by `VACUUM INTO` has another journal mode
def test_a_lock_of_another_process_delays_no_search_and_refuses_changes(path, short_wait, mode):
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as foreign:
        foreign.execute(f"PRAGMA journal_mode={mode}")
        opened = Index(path)
        foreign.execute("BEGIN EXCLUSIVE")
        assert ids(opened) == ["d2", "d1", "d0"]  # one that waited would be refused
        for change in (lambda: opened.delete(["d0"]), lambda: make_index(path)):
            check_refusal(change, str(path), "another process", "wait for it or stop it", kind=InUse)
    opened.delete(["d0"])
    assert names(opened.path) == ["d1", "d2"]


def test_readers_see_whole_states_while_a_writer_changes_it(opened):
    counts, failures, stop = set(), [], threading.Event()

    def read(index_of):
        while not stop.is_set():
            try:
                found = [document.id for _, document in index_of().snapshot]
            except EndxError as failure:
                failures.append(failure)
                return
            counts.add(sum(name.startswith("pair") for name in found))

    index_of = [lambda: opened, lambda: Index(opened.path)]
    readers = [threading.Thread(target=read, args=[function]) for function in index_of]
    for reader in readers:
        reader.start()
    writer = Index(opened.path)
    try:
        for n in range(12):
            writer.add([Document(f"pair {n} {side}", "") for side in "ab"], np.float32([[50, 0], [60, 0]]))
            writer.delete([f"pair {n} a", f"pair {n} b"])
    finally:
        stop.set()
        for reader in readers:
            reader.join()
    assert failures == []
    assert counts <= {0, 1, 2}  # texts of a pair that was deleted meanwhile are not read
    assert {0, 2} & counts


@pytest.mark.parametrize("change", [lambda index: index.add([NEW], EMBEDDINGS[:1]), lambda index: index.delete(["d1"])])
def test_an_index_that_was_changed_is_not_replaced(opened, change):
    change(opened)
    before = names(opened.path)
    check_refusal(lambda: make_index(opened.path), "added or deleted since", "rename it", kind=InUse)
    assert names(opened.path) == before


def test_an_index_that_was_moved_or_replaced_is_not_changed(path, opened):
    path.rename(path.with_name("old"))
    check_refusal(lambda: opened.delete(["d0"]), str(path), "moved or deleted", "restore it", kind=InUse)
    assert ids(opened) == ["d2", "d1", "d0"]
    shutil.copy(path.with_name("old"), path.with_name("backup"))
    for replace in (lambda: path.with_name("backup").replace(path), lambda: make_index(path)):
        replace()
        for change in (lambda: opened.delete(["d0"]), lambda: opened.add([NEW], EMBEDDINGS[:1])):
            check_refusal(change, str(path), "replaced", "open it again", kind=InUse)
    assert names(path) == ["d0", "d1", "d2"]


def test_a_full_disk_is_one_line_and_changes_nothing(opened, monkeypatch):
    connect = index_file.connect

    def small(*arguments):
        database = connect(*arguments)
        database.execute("PRAGMA max_page_count=8")
        return database

    with monkeypatch.context() as patch:
        patch.setattr(index_file, "connect", small)
        big = [Document("big", "x" * 200_000)], EMBEDDINGS[:1]
        check_refusal(lambda: opened.add(*big), str(opened.path), "disk is full", "free some space", kind=DiskFull)
    assert names(opened.path) == ["d0", "d1", "d2"]
    opened.add(*big)


def test_an_index_that_can_only_be_read_is_searched(path):
    path.parent.chmod(0o500)
    path.chmod(0o400)
    try:
        assert names(path) == ["d0", "d1", "d2"]
    finally:
        path.parent.chmod(0o700)


def test_an_index_whose_log_can_not_be_read_is_refused(
    path, tmp_path, short_wait, monkeypatch
):  # for the reader, while the log is merged
    opened = Index(path)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM documents").fetchone()  # keeps the change in the log
        opened.delete(["d0"])
        (tmp_path / "copy").mkdir()
        for name in ("index.sqlite", "index.sqlite-wal"):
            shutil.copy(path.with_name(name), tmp_path / "copy" / name)
    copy, link, connect = tmp_path / "copy" / "index.sqlite", tmp_path / "link", sqlite3.connect
    link.symlink_to(copy)

    class Unreadable(sqlite3.Connection):
        def execute(self, *_):
            failure = sqlite3.OperationalError("unable to open database file")
            failure.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
            raise failure

    def read_only(address, **options):
        return connect(address, **options | ({} if "immutable" in address else {"factory": Unreadable}))

    with monkeypatch.context() as patch:  # a folder without write permission, which root has
        patch.setattr(sqlite3, "connect", read_only)
        for opening in (copy, link):
            check_refusal(lambda path=opening: Index(path), "log index.sqlite-wal", "copy both files elsewhere")
    assert names(copy) == ["d1", "d2"]
