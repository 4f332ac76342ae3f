"""Files, documents and calls that an index refuses: what is wrong, and the words of the line: place, value, remedy."""

import contextlib
import functools
import pathlib
import sqlite3
import threading

import jax.numpy as jnp
import numpy as np
import pytest
from helpers import searching, written
from late_folders import write_multi_vector
from refusals import check_refusal
from small_index import DOCUMENTS, EMBEDDINGS, embed, make_index

import endx_jax
from endx_jax.data.batches.ragged import RaggedVectors
from endx_jax.data.sets.documents import Document, passages_of
from endx_jax.data.sets.examples import Judgements
from endx_jax.errors import EndxError
from endx_jax.index.corpus_encoding import Encoding, encode_corpus
from endx_jax.index.filters import condition
from endx_jax.index.index import Index
from endx_jax.index.index_evaluation import find_rows
from endx_jax.index.index_file import store_info
from endx_jax.index.index_model import open_index
from endx_jax.index.milvus import publish
from endx_jax.numerics import quantize

ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT"
NAN = float("nan")


@pytest.fixture
def path(tmp_path):
    return make_index(tmp_path / "index.sqlite").path


def read(path):
    return [*Index(path).snapshot]


FIELDS = "field 1 to 200 characters without quotation"
SIZE = "at most 100 conditions"


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ({'a"b': 1}, FIELDS),
        ({"": 1}, f"'' {FIELDS}"),
        ({"a\0b": 1}, FIELDS),
        ({"a" * 201: 1}, FIELDS),
        ({f"{n}": {"gt": 1, "lt": 9} for n in range(51)}, f"102 {SIZE}"),
        ({f"{n}": 1 for n in range(101)}, f"101 {SIZE}"),
        ({"lang": [*map(str, range(10_001))]}, "1 condition 10,002 10,000 values"),
        ({"year": {"above": 3}}, "'year' above gt, gte, lt or lte"),
        ({"year": {}}, "'year' {} gt, gte, lt or lte"),
        ({"year": None}, "'year' None use a text, a number or a truth value"),
        ({"year": [[1]]}, "'year' [1] use a text, a number or a truth value"),
        ({"year": 2**70}, "'year' 11805916 use a text, a number or a truth value"),
        ({"year": {"gte": NAN}}, "'year' nan use another number"),
        ({"\ud800": 1}, r"field '\ud800' surrogate"),
        ({"lang": ["en", "\ud800"]}, r"'lang' '\ud800' surrogate"),
        ({"lang": "en", 1: 2}, FIELDS),
        ([("lang", "en")], "'lang' dictionary"),
    ],
)
def test_a_filter_of_another_form_is_named(path, where, words):
    check_refusal(lambda: condition(where), *words.split())
    check_refusal(lambda: Index(path).snapshot.where(where), *words.split())


SHARDS = None, 7, [], [0, 0], [3, 2], [1, 2, 3], ["1", "2"], "ab", {"a": 1}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"width": "2"}, "index.sqlite.width '2' int"),
        ({"width": 0}, "'width' 0 from 1 to"),
        ({"width": 3}, "12 bytes"),
        ({"width": 2**31 - 1}, "too small width 2147483647"),
        ({"precision": "float64"}, "'precision' 'float64' float32, float16, int8, binary"),
        ({"precision": "int8"}, "2 bytes"),
        ({"metric": []}, "index.sqlite.metric [] str"),
        ({"model": "x"}, "index.sqlite.model 'x' dict"),
        ({"model": {"name": 5}}, "'name' of the model string"),
        ({"corpus": 5}, "index.sqlite.corpus 5 dict"),
        *(({"corpus": {"documents": count}}, "'documents' of the corpus whole") for count in ("x", [], 1.5)),
        ({"corpus": {"shard": [1, 2]}}, "'documents' of the corpus None"),
        *(({"corpus": {"documents": 4, "shard": shard}}, "'shard' of the corpus number total") for shard in SHARDS),
        ({"changed": 1}, "index.sqlite.changed 1 bool"),
        ({"complete": False}, "not finished: repeat `endx encode`"),
    ],
)
def test_a_wrong_description_is_named(path, fields, words):
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        store_info(database, **fields)
    check_refusal(lambda: Index(path), *words.split())


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("PRAGMA user_version = 9", "version 9 4: make it again"),
        ("DELETE FROM about WHERE key = 'metric'", "'metric'"),
        ("UPDATE about SET value = '{' WHERE key = 'model'", "'model' JSON"),
        ("UPDATE passages SET embedding = 'text' WHERE row = 2", "8 bytes restore"),
        ("UPDATE passages SET embedding = x'0000c07f00000000' WHERE row = 2", "nan restore"),
        ("UPDATE documents SET metadata = '[' WHERE row = 2", "metadata 'd1' JSON"),
        ("UPDATE passages SET text = x'ff' WHERE row = 2", "'d1' text restore"),
        (r"""UPDATE documents SET metadata = '{"a": "\udfff"}' WHERE row = 2""", "'d1' surrogate"),
        ("UPDATE documents SET row = -5 WHERE row = 2", "row -5 restore"),
        ("UPDATE documents SET row = 0x7fffffffffffffff WHERE row = 2", "row 9223372036854 restore"),
        ("UPDATE sqlite_sequence SET seq = 0x7fffffffffffffff", "row 9223372036854 restore"),
        ("INSERT INTO deleted VALUES (-1, 1, 'a')", "row -1 restore"),
        ("DROP TABLE about", "table: about restore"),
        (f"DROP TABLE about; CREATE VIEW about AS {ENDLESS} x AS key, 1 AS value FROM c", "'about' (view) restore"),
        ("CREATE TRIGGER t AFTER INSERT ON documents BEGIN DELETE FROM deleted; END", "'t' (trigger) restore"),
        ("CREATE TABLE more (a DEFAULT (random()))", "'more' (table) restore"),
        ("ALTER TABLE documents ADD COLUMN more AS (row + 1)", "'documents' (table) restore"),
    ],
)
def test_damage_is_named(path, statement, words):
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.executescript(statement)
    check_refusal(lambda: read(path), *words.split())


@pytest.mark.parametrize("scale", ["-0.5", "9e999", "-9e999"])
def test_a_scale_that_is_none_is_damage(tmp_path, scale):
    path = make_index(tmp_path / "i", quantize(EMBEDDINGS, np)).path
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute(f"UPDATE passages SET scale = {scale} WHERE row = 2")
    check_refusal(lambda: read(path), "scale", "restore")


@pytest.fixture(scope="module")
def late(tmp_path_factory):
    """A model of late interaction, a corpus, and the file of its index."""
    folder = tmp_path_factory.mktemp("late")
    model = endx_jax.load(str(write_multi_vector(folder / "model")))
    corpus = written(folder / "corpus.jsonl", [{"_id": f"d{n}", "text": "the cat sat"[n:]} for n in range(3)])
    return model, str(corpus), encode_corpus(model.name, str(corpus), folder / "index")


DAMAGED = "document token vectors width 4 restore"


@pytest.mark.parametrize(
    ("change", "scale", "words"),
    [
        ("UPDATE tokens SET codes = x'00'", None, DAMAGED),
        ("DELETE FROM tokens", None, DAMAGED),
        *(("UPDATE tokens SET codes = x'01010101', scales = ?", scale, DAMAGED) for scale in (np.nan, np.inf, -1)),
        ("UPDATE tokens SET codes = x'7f7f7f7f', scales = ?", 3e38, "score question 0 candidate"),
    ],
)
def test_damaged_token_vectors_are_named(late, tmp_path, change, scale, words):
    path = tmp_path / "index"
    path.write_bytes(late[2].read_bytes())
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute(change, [] if scale is None else [np.full(1, scale, "<f4").tobytes()])
    with np.errstate(over="ignore", invalid="ignore"):
        check_refusal(lambda: open_index(path).search(["cat"], 1, mode="dense"), *words.split())


def test_other_threads_read_an_index_after_an_error_whose_traceback_is_kept(late, tmp_path):
    path, found = tmp_path / "index", []
    path.write_bytes(late[2].read_bytes())
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE tokens SET codes = x'00'")
    index = open_index(path)
    with pytest.raises(EndxError) as caught:
        index.search(["cat"], 1, mode="dense")
    other = threading.Thread(target=lambda: found.append(index.get("d0")), daemon=True)
    other.start()
    other.join(10)
    assert found, caught


def test_what_token_vectors_do_not_allow_is_named(late, tmp_path):
    model, corpus, path = late
    for wrong in (RaggedVectors.of([np.ones((2, 3), np.float32)]), np.ones((1, 3), np.float32)):
        check_refusal(lambda wrong=wrong: Index(path).add([Document("x", "x")], wrong), "index of width 4", model.name)
    one = [Document("x", "x")], np.ones((1, 4), np.float32)
    check_refusal(lambda: Index(path).add(*one), "one vector", "token vectors", model.name)
    cut = Encoding(truncate_dim=2)
    check_refusal(lambda: encode_corpus(model.name, corpus, path, cut), "truncate_dim", "one vector for each text")
    milvus = str(tmp_path / "new.db")
    check_refusal(lambda: publish(Index(path), milvus, "documents"), str(path), "token vectors", "encode_document")


def test_a_corpus_that_changes_between_its_two_readings_is_named(late, tmp_path, monkeypatch):
    model, corpus, _ = late
    readings = [[Document("a", text)] for text in ("cat", "dog")]
    monkeypatch.setattr("endx_jax.index.corpus_encoding.read_corpus", lambda *_, **__: readings.pop(0))
    check_refusal(lambda: encode_corpus(model.name, corpus, tmp_path / "new"), "changed", "encode it again")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "no file of an index make one `endx encode`"),
        (lambda path: path.mkdir(), "no file of an index make one `endx encode`"),
        (lambda path: path.write_text("text of somebody, not a database"), "not an index restore"),
        (lambda path: sqlite3.connect(path).executescript("CREATE TABLE a (b)").close(), "no index make one"),
    ],
)
def test_a_path_without_an_index_is_named(tmp_path, make, words):
    path = tmp_path / "here"
    make(path)
    check_refusal(lambda: Index(path), str(path), *words.split())
    if path.is_dir():
        words = f"folder {path}/index.sqlite"
    if path.exists():
        check_refusal(lambda: make_index(path), str(path), *words.split())


@pytest.mark.parametrize(
    ("about", "words"),
    [
        ({"embeddings": EMBEDDINGS.astype(np.float64)}, "float32, float16, int8 float64"),
        ({"embeddings": EMBEDDINGS.astype(np.int8)}, "float32, float16, int8 with scales int8"),
        ({"embeddings": EMBEDDINGS.astype(jnp.bfloat16)}, "float32, float16, int8 bfloat16"),
        ({"embeddings": np.where(np.arange(3)[:, None] == 1, NAN, EMBEDDINGS)}, "'d1' nan"),
        ({"embeddings": EMBEDDINGS + np.inf}, "'d0' infinity"),
        ({"language": "en"}, "'language' 'en' english, german"),
        ({"metric": "dot"}, "'metric' 'dot' cosine, inner product"),
    ],
)
def test_what_no_file_holds_is_refused_and_the_old_file_stays(path, about, words):
    for target in (path, path.with_name("new")):
        check_refusal(lambda target=target: make_index(target, **about), *words.split())
    assert [document for _, document in read(path)] == DOCUMENTS
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def add(*documents, embeddings=EMBEDDINGS, known=None):
    documents = [Document(one, "") if isinstance(one, str) else one for one in documents]
    return lambda index: index.add(documents, embeddings[: len(documents)], known=known)


ASKED = Document("new", "", {}, ("z",))
ONE, TWO = passages_of(Document("new", ""), ["one", "two"])
TWICE = "occurs twice ids unique"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (add("new", "d1"), "index.sqlite 'd1' choose another id"),
        (add("new", "new"), f"'new' {TWICE}"),
        (add(ONE, "x", TWO), f"'new' {TWICE}"),
        (add(ONE, ONE), f"'new#1' {TWICE}"),
        (add("new", embeddings=np.ones((1, 3))), "(1, 3) width 2 m"),
        (add("new", embeddings=[EMBEDDINGS]), "token vectors one vector m"),
        (add("new", embeddings=np.float32([[np.inf, 0]])), "'new' infinity"),
        (add(Document("new", "\ud83d")), "'new' surrogate"),
        (add(Document("new", "", {"a": "\ud83d"})), "'new' surrogate"),
        *((add(Document("new", text)), "text 'new' string") for text in (None, NAN)),
        *((add(Document(name, "")), "id documents[0] string") for name in (77, np.int64(7), pathlib.Path("a.md"))),
        *((add("new", name), "id documents[1]") for name in ("", "..", "a\nb")),
        (add(Document("new", "", {}, "When?")), "'new' questions tuple"),
        (add(Document("new", "", None)), "'new' metadata dictionary"),
        (add(Document("new", "", {"year": {3}})), "metadata 'new' text"),
        (lambda index: index.add([("new", "text")], EMBEDDINGS[:1]), "documents[0] 'new' Document"),
        (add(Document("new", "", {"year": NAN})), "metadata 'new' nan"),
        (add(Document("new", "", {"year": 2**63})), "metadata 'new' 64 bits text"),
        *((add(ASKED, known=known), "1 known questions width 2") for known in (None, np.ones((2, 2)), np.ones((1, 3)))),
        (add(ASKED, known=np.full((1, 2), np.nan)), "nan"),
        (lambda index: index.add([ASKED]), "no model load one embeddings"),
        (lambda index: index.add(None), "documents None Document"),
        *((lambda index, ids=ids: index.delete(ids), "ids string list") for ids in (12, pathlib.Path("d1"))),
        (lambda index: index.delete(["d1", "d7"]), "'d7' check the ids"),
        *((lambda index, name=name: index.delete(["d1", name]), "ids[1] string") for name in (np.int64(7), b"d2", [])),
        (lambda index: index.delete([*"abcd"]), "'a', 'b', 'c' 1 others"),
    ],
)
def test_a_change_that_is_refused_changes_nothing(path, change, words):
    index = Index(path)
    check_refusal(lambda: change(index), *words.split())
    for found in (index, Index(path)):
        assert [document for _, document in found.snapshot] == DOCUMENTS


JUDGED = Judgements(("q",), ("?",), ({"d1": 1, "b": 1, "a": 1},), ((),))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda index: Index(index.path, engine="fast"), "engine 'fast' exact, flat, ivf, hnsw"),
        (lambda index: index.search(["a"], 3), "no model load one 'bm25'"),
        (lambda index: searching(index, functools.partial(embed, width=2)).search(["a"], mode="no"), "mode 'no' bm25"),
        *((lambda index, k=k: index.search(["a"], k, mode="bm25"), f"k {k} from 1") for k in (0, 5.0)),
        *(
            (lambda index, q=q: index.search(q, mode="bm25"), "questions string list")
            for q in (None, pathlib.Path("a"))
        ),
        (lambda index: index.search(["a", None], mode="bm25"), "questions[1] string"),
        (lambda index: index.search([b"a"], mode="bm25"), "questions[0] string bytes"),
        (lambda index: index.get(np.int64(7)), "id string int64"),
        (lambda index: index.search(["a", "b"], embeddings=EMBEDDINGS[:1], mode="dense"), "embeddings 1 2 each"),
        (lambda index: find_rows(index.snapshot, JUDGED), "2 of 3 'a' encode the corpus"),
    ],
)
def test_a_search_that_is_refused_names_its_argument(path, call, words):
    check_refusal(lambda: call(Index(path)), *words.split())


@pytest.mark.parametrize(
    ("to", "name", "words"),
    [
        ("there.db", "a-b", "'a-b' use letters"),
        ("there.db", "0", "'0' no digit"),
        ("file.db", "a", "file.db folder choose another path"),
        ("somewhere", "a", "address=somewhere http://HOST:PORT"),
        ("http://root:secret@host", "a", "address password MILVUS_TOKEN"),
    ],
)
def test_an_address_that_is_none_is_named(path, to, name, words):
    (path.parent / "file.db").touch()
    to = str(path.parent / to) if to.endswith(".db") else to
    check_refusal(lambda: publish(Index(path), to, name), *words.split())
