import json
import threading

import jax.numpy as jnp
import numpy as np
import pytest
from helpers import one_line_error

from endx_jax.data.documents import Document
from endx_jax.numerics import quantize
from endx_jax.retrieval import index as index_module
from endx_jax.retrieval.index import Index, write_index
from endx_jax.retrieval.search import top_k
from endx_jax.retrieval.shards import COSINE, Manifest, Shard, read_manifest, write_manifest, write_shard
from endx_jax.retrieval.text_search import TextSearch

EMBEDDINGS = np.arange(1, 7, dtype=np.float32).reshape(3, 2)
DOCUMENTS = [Document("d0", "eins"), Document("d1", "zwei\nZeilen", {"source": "≠", "year": 3}), Document("d2", "")]
MODEL = {"name": "somebody", "identity": "0123456789abcdef"}
ASKED = np.float32([[1, 0], [-1, 0]])


def write(folder, embeddings=EMBEDDINGS, documents=DOCUMENTS):
    write_index(folder, embeddings, documents, metric=COSINE, model=MODEL)
    return folder


def ids(index, question=0, k=10):
    """What is found for a question, best first."""
    return [index.document(row).id for row in index.search(ASKED, k).rows[question]]


@pytest.fixture
def opened(tmp_path) -> Index:
    return Index(write(tmp_path / "index"))


def test_an_index_is_read_as_it_was_written(opened):
    assert len(opened) == 3
    assert opened.manifest.width == 2
    assert (opened.manifest.precision, opened.manifest.metric, opened.manifest.model) == ("float32", COSINE, MODEL)
    assert [document for _, document in opened.snapshot.documents()] == DOCUMENTS
    assert opened.document(1) == DOCUMENTS[1]
    found = opened.search(ASKED, 2)
    np.testing.assert_array_equal(found.rows, [[2, 1], [0, 1]])
    np.testing.assert_array_equal(found.scores, [[5, 3], [-1, -3]])


def test_an_index_is_shown_in_a_line(opened):
    assert repr(opened.snapshot) == "Snapshot(3 documents, width 2, float32, cosine)"
    assert repr(opened) == f"Index({str(opened.folder)!r}, {opened.snapshot!r})"
    assert repr(TextSearch(opened)) == f"TextSearch({opened!r})"


def test_a_newer_index_takes_the_place_of_the_old(tmp_path):
    write(tmp_path / "index")
    write(tmp_path / "index", EMBEDDINGS + 1)
    np.testing.assert_array_equal(Index(tmp_path / "index").snapshot.vectors(0, 3), EMBEDDINGS + 1)
    assert [entry.name for entry in tmp_path.iterdir()] == ["index"]


def test_a_write_that_fails_leaves_the_old_one_and_nothing_else(tmp_path):
    write(tmp_path / "index")
    with one_line_error("embedding of document 'd1' contains nan or infinity"):
        write(tmp_path / "index", np.where(np.arange(3)[:, None] == 1, np.nan, EMBEDDINGS))
    with one_line_error("document 'd0' occurs twice"):
        write(tmp_path / "index", documents=[*DOCUMENTS[:2], DOCUMENTS[0]])
    assert len(Index(tmp_path / "index")) == 3
    assert [entry.name for entry in tmp_path.iterdir()] == ["index"]


def test_only_the_model_that_encoded_it_may_search_it(opened):
    opened.check_model("moved", MODEL["identity"])
    with one_line_error(r"encoded by somebody \(identity 0123456789ab\), not by other \(ba9876543210\)"):
        opened.check_model("other", "ba9876543210fedc")


@pytest.mark.parametrize("precision", ["float32", "float16", "int8"])
def test_added_documents_are_found_here_and_when_it_is_opened_again(tmp_path, precision):
    whole = quantize(jnp.asarray(EMBEDDINGS))
    stored = type(whole)(*map(np.asarray, whole)) if precision == "int8" else EMBEDDINGS.astype(precision)
    index = Index(write(tmp_path / "index", stored))
    assert ids(index) == ["d2", "d1", "d0"]
    index.add([Document("d3", "vier", {"a": 1}), Document("d4", "fünf")], np.float32([[4.1, 0], [99, 0]]))
    for found in (index, Index(index.folder)):
        assert (len(found), found.manifest.precision) == (5, precision)
        assert ids(found) == ["d4", "d2", "d3", "d1", "d0"]
        assert found.document(3) == Document("d3", "vier", {"a": 1})
    # 4.1 in float16 is 4.1015625; in int8 it is 127 times the scale.
    np.testing.assert_allclose(index.snapshot.vectors(3, 4), [[4.1015625 if precision == "float16" else 4.1, 0]], 1e-6)


def test_deleted_documents_are_not_found_here_nor_when_it_is_opened_again(opened):
    opened.delete(["d1"])
    for found in (opened, Index(opened.folder)):
        assert ids(found) == ["d2", "d0"]
        assert (len(found), "d1" in found, "d2" in found) == (2, False, True)
        assert (found.get("d1"), found.get("d2")) == (None, DOCUMENTS[2])
        assert [(row, document.id) for row, document in found.snapshot.documents()] == [(0, "d0"), (2, "d2")]
        assert found.document(1) == DOCUMENTS[1]  # who found it a moment before can still read it
    opened.add([Document("d1", "again")], np.float32([[9, 9]]))
    assert ids(Index(opened.folder)) == ["d1", "d2", "d0"]


def test_mistakes_change_nothing(opened):
    def add(*names, embeddings=EMBEDDINGS):
        opened.add([Document(name, "") for name in names], embeddings[: len(names)])

    with one_line_error(r"already contains document 'd1'"):
        add("new", "d1")
    with one_line_error("'new' occurs twice"):
        add("new", "new")
    with one_line_error(r"embeddings have shape \(1, 3\) for 1 documents and an index of width 2: .* somebody"):
        add("new", embeddings=np.ones((1, 3)))
    with one_line_error("'new' contains nan or infinity"):
        add("new", embeddings=np.float32([[np.inf, 0]]))
    with one_line_error("'new' holds a lone surrogate"):
        opened.add([Document("new", "\ud83d")], EMBEDDINGS[:1])
    with one_line_error("no document 'd7'"):
        opened.delete(["d1", "d7"])
    with one_line_error("no document 'a', 'b', 'c' and 1 others"):
        opened.delete("abcd")
    for found in (opened, Index(opened.folder)):
        assert ids(found) == ["d2", "d1", "d0"]


def test_documents_take_the_place_of_those_with_their_ids(opened):
    opened.add([Document("d2", "zwo"), Document("d9", "neun")], np.float32([[-5, 0], [7, 0]]), replace=True)
    for found in (opened, Index(opened.folder)):
        assert ids(found) == ["d9", "d1", "d0", "d2"]
        assert len(found) == 4
    opened.delete(["d2"])
    assert ids(opened) == ["d9", "d1", "d0"]


def test_rows_keep_their_numbers_and_small_shards_are_merged(opened):
    for n in range(3, 40):
        opened.add([Document(f"d{n}", f"text {n}")], np.float32([[n, -n]]))
    opened.delete(["d20"])
    again = Index(opened.folder)
    for row in range(40):
        assert again.document(row).id == f"d{row}"
    # Each is larger than the next, and of those that were merged no file is left.
    sizes = [shard.documents for shard in again.manifest.shards]
    assert sum(sizes) == 40
    assert sizes == sorted(set(sizes), reverse=True)
    assert len([*opened.folder.iterdir()]) == 2 * len(sizes) + 2  # the manifest and the lock


def test_shards_are_not_merged_beyond_a_size(opened, monkeypatch):
    monkeypatch.setattr(index_module, "MERGED", 4)
    opened.add([Document(f"e{n}", "") for n in range(3)], EMBEDDINGS)
    assert [shard.documents for shard in opened.manifest.shards] == [3, 3]


def test_many_shards_are_searched_as_one(tmp_path, monkeypatch):
    rng, folder = np.random.default_rng(0), tmp_path / "index"
    rows = rng.integers(-3, 4, (900, 8)).astype(np.float32)
    documents = [Document(str(n), f"text {n}") for n in range(900)]
    cuts = [(0, 100), (100, 612), (612, 613), (613, 900)]
    shards = [write_shard(folder, n, rows[a:b], documents[a:b]) for n, (a, b) in enumerate(cuts)]
    write_manifest(folder, Manifest(8, "float32", COSINE, MODEL, tuple(shards), deleted=(0, 611, 612)))
    index, questions = Index(folder), rng.integers(-3, 4, (9, 8)).astype(np.float32)
    kept = np.setdiff1d(np.arange(900), [0, 611, 612])
    expected = top_k(questions, rows[kept], 20)
    resident = index.search(questions, 20)
    monkeypatch.setattr("endx_jax.retrieval.snapshot.fits", lambda size: False)
    streamed = Index(folder).search(questions, 20)
    for found in (resident, streamed):
        np.testing.assert_array_equal(found.rows, kept[expected.rows])
        np.testing.assert_array_equal(found.scores, expected.scores)
    parts = [*index.snapshot.parts(size=256)]
    np.testing.assert_array_equal(np.concatenate([part[0] for part in parts]), kept)
    np.testing.assert_array_equal(np.concatenate([part[1] for part in parts]), rows[kept])
    assert [document for part in parts for document in part[2]] == [documents[row] for row in kept]


def test_another_process_is_not_overwritten(opened):
    other = Index(opened.folder)
    other.add([Document("theirs", "")], np.float32([[1, 1]]))
    with one_line_error("changed, replaced or moved by another process since it was opened: open it again"):
        opened.add([Document("ours", "")], np.float32([[1, 1]]))
    with one_line_error("changed, replaced or moved by another process"):
        opened.delete(["d0"])
    assert "theirs" in Index(opened.folder)


def test_an_add_that_is_cut_off_before_its_manifest_leaves_the_index_as_it_was(opened, monkeypatch):
    def cut_off(folder, manifest):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(index_module, "write_manifest", cut_off)
        with pytest.raises(KeyboardInterrupt):
            opened.add([Document("d3", "")], np.float32([[1, 1]]))
    for found in (opened, Index(opened.folder)):
        assert ids(found) == ["d2", "d1", "d0"]
    opened.add([Document("d3", "")], np.float32([[9, 1]]))
    assert ids(Index(opened.folder))[0] == "d3"


def test_readers_see_whole_states_while_a_writer_changes_it(opened):
    """A hundred pairs are added and deleted together; a reader never finds one without the other."""
    halves, stop = [], threading.Event()
    opened.search(ASKED[:1], 2)

    def read():
        while not stop.is_set():
            snapshot = opened.snapshot
            found = [snapshot.document(row).id for row in snapshot.search(ASKED[:1], 2).rows[0]]
            halves.extend([found] if sum(name.startswith("pair") for name in found) == 1 else [])

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        for n in range(25):
            opened.add([Document(f"pair {n} {side}", "") for side in "ab"], np.float32([[50, 0], [60, 0]]))
            opened.delete([f"pair {n} a", f"pair {n} b"])
    finally:
        stop.set()
        for reader in readers:
            reader.join()
    assert halves == []


def test_a_folder_without_an_index_is_refused(tmp_path):
    with one_line_error("contains no index .* make one with `endx train`, `endx evaluate` or `endx encode`"):
        Index(tmp_path)


def test_an_index_of_the_first_version_is_refused(tmp_path):
    (tmp_path / "manifest.json").write_text(json.dumps({"version": 1, "documents": 3, "width": 2, "model": {}}))
    with one_line_error("of version 1, .* remove it and make it again with `endx evaluate`"):
        Index(tmp_path)


RIGHT = {
    "version": 2,
    "width": 2,
    "precision": "float32",
    "metric": COSINE,
    "model": MODEL,
    "shards": [{"name": "00000", "documents": 3}],
}
WRONG = (
    ("", "broken JSON"),
    ("{", "broken JSON"),
    ("[]", "must be an object, not a list"),
    ("null", "must be an object, not null"),
    ("[" * 100_000, "nested too deeply"),
    ('{"version": ' + "9" * 5_000, "more than 4,300 digits"),
    ({"version": "2"}, "has an index of version '2', but this endx_jax reads version 2"),
    ({"version": [[]]}, "has an index of version \\["),
    ({"shards": None}, "'shards' must be a list, not null"),
    ({"shards": [5]}, r"shards\[0\] must be an object, not a whole number"),
    ({"shards": [{"name": "../00000", "documents": 3}]}, r"shards\[0\]: 'name' must be a number of five digits"),
    ({"shards": [{"name": "00000", "documents": -3}]}, "'documents' is -3; it must be a whole number from 1 to"),
    ({"shards": 2 * [{"name": "00000", "documents": 3}]}, "'shards' contains a name twice"),
    ({"shards": [{"name": "00000", "documents": 10**9}]}, r"embeddings-00000.npy does not match .* \(10+, 2\)"),
    ({"deleted": [10**9]}, "'deleted' must list rows below 3 in ascending order, not 1000000000"),
    ({"deleted": ["x"]}, "in ascending order, not 'x'"),
    ({"deleted": [-1]}, "in ascending order, not -1"),
    ({"deleted": [1, 1]}, "in ascending order, not 1"),
    ({"deleted": [2, 1]}, "in ascending order, not 1"),
    ({"deleted": {}}, "'deleted' must be a list, not an object"),
    ({"width": "2"}, "'width' is '2'; it must be a whole number from 1 to"),
    ({"width": 0}, "'width' is 0; it must be a whole number from 1 to"),
    ({"width": 3}, r"its header is .*\(3, 2\).* and not .*\(3, 3\)"),
    ({"precision": "float64"}, "'precision' must be 'float32' or 'float16' or 'int8', not 'float64'"),
    ({"metric": []}, "'metric' must be 'cosine' or 'inner product', not \\[\\]"),
    ({"model": "x"}, "'model' must be an object, not a string"),
    ({"model": {"name": 5}}, "'name' must be a string, not a whole number"),
    ({"corpus": 5}, "'corpus' must be an object"),
    ({"generation": -1}, "'generation' is -1; it must be a whole number"),
    ({"changed": 1}, "'changed' must be true or false"),
)


@pytest.mark.parametrize(("change", "message"), WRONG, ids=range(len(WRONG)))
def test_a_wrong_manifest_is_refused_in_one_line(opened, change, message):
    text = change if isinstance(change, str) else json.dumps(RIGHT | change)
    (opened.folder / "manifest.json").write_text(text)
    with one_line_error(message) as refused:
        Index(opened.folder)
    assert len(str(refused.value)) < 500


def test_a_missing_field_of_a_manifest_is_named(opened):
    for name in RIGHT:
        (opened.folder / "manifest.json").write_text(json.dumps({k: v for k, v in RIGHT.items() if k != name}))
        with one_line_error(f"manifest.json: no '{name}' among"):
            Index(opened.folder)
    (opened.folder / "manifest.json").write_text(json.dumps(RIGHT))
    assert ids(Index(opened.folder)) == ["d2", "d1", "d0"]


def test_an_index_that_lost_a_document_is_refused(tmp_path):
    file = write(tmp_path / "index") / "documents-00000.jsonl"
    file.write_text("\n".join(file.read_text().splitlines()[:2]) + "\n")
    with one_line_error("documents-00000.jsonl is incomplete: 2 of 3 documents"):
        Index(file.parent).document(0)


def test_a_broken_document_is_named_by_its_line(tmp_path):
    file = write(tmp_path / "index") / "documents-00000.jsonl"
    file.write_text(file.read_text().replace('"id": "d1"', '"name": "d1"'))
    index = Index(file.parent)
    assert index.document(0).id == "d0"
    with one_line_error("documents-00000.jsonl, line 2: no 'id' among 'name', 'text', 'metadata'"):
        index.document(1)


def test_a_shard_that_is_gone_or_of_another_shape_is_refused(tmp_path):
    file = write(tmp_path / "index") / "embeddings-00000.npy"
    np.save(file, EMBEDDINGS[:2])
    with one_line_error(r"its header is .*\(2, 2\).* and not .*\(3, 2\)"):
        Index(file.parent)
    file.unlink()
    with one_line_error("embeddings-00000.npy can't be read"):
        Index(file.parent)


def test_an_index_never_unpickles(tmp_path):
    folder = write(tmp_path / "index")
    np.save(folder / "embeddings-00000.npy", np.array([{"code": 1}], dtype=object), allow_pickle=True)
    with one_line_error(r"its header is .*O.* and not .*<f4"):
        Index(folder)


def test_precisions_that_no_file_holds_are_refused(tmp_path):
    for embeddings in (EMBEDDINGS.astype(np.float64), EMBEDDINGS.astype(np.int8), EMBEDDINGS.astype(jnp.bfloat16)):
        with one_line_error("an index does not support embeddings in (float64|int8|bfloat16)"):
            write(tmp_path / "index", embeddings)


def test_a_manifest_comes_back_as_it_was(tmp_path):
    shards = (Shard("00000", 5), Shard("123456", 1))
    manifest = Manifest(3, "int8", COSINE, MODEL, shards, (1, 5), {"path": "ü"}, generation=4, changed=True)
    write_manifest(tmp_path, manifest)
    assert read_manifest(tmp_path) == manifest
