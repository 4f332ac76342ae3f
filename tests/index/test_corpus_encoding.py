import dataclasses

import jax
import numpy as np
import pytest
from refusals import check_refusal
from small_index import MODEL, embed, make_index

from endx_jax.data.sets.documents import Document
from endx_jax.errors import InUse
from endx_jax.index.corpus_encoding import Reuse, begin_index, encode_missing, survey, unchanged
from endx_jax.index.index import Index
from endx_jax.index.index_file import IndexInfo
from endx_jax.index.shards import join_shards, shard_range
from endx_jax.numerics import Quantized

# Every fourth has a known question.
DOCUMENTS = [
    Document(f"d{n}", f"text {n}", {"n": n} if n % 3 else {}, () if n % 4 else (f"question {n}",)) for n in range(23)
]


def info_of(documents=DOCUMENTS, *, shard=None, **changes) -> IndexInfo:
    found = survey(documents)
    corpus = {"path": "c.jsonl", "documents": found.documents, "sha256": found.sha256}
    settings = {"model": MODEL, "corpus": corpus | ({"shard": shard} if shard else {})}
    settings |= {"width": 8, "precision": "float32", "metric": "cosine", "complete": False}
    return IndexInfo(**settings | changes)


def embed_int8(texts) -> Quantized:
    rows = embed(texts)
    return Quantized((50 * rows).astype(np.int8), abs(rows[:, 0]))


def run(path, info, encode=embed, documents=DOCUMENTS, reuse=None) -> list[tuple[int, int]]:
    begin_index(path, info)
    of_questions = embed if info.precision == "float32" else embed_int8
    return [*encode_missing(path, info, documents, encode, encode_question=of_questions, reuse=reuse, step=5)]


def contents(path):
    index = Index(path)
    info = dataclasses.asdict(dataclasses.replace(index.snapshot.info, content=""))
    known = jax.tree.map(np.ndarray.tolist, index.snapshot.known.embeddings[:])
    return info, [*index.snapshot], index.snapshot.vectors(0, len(index)).tolist(), known


def test_a_corpus_becomes_an_index(tmp_path):
    assert run(tmp_path / "i", info_of()) == [(5, 5), (5, 5), (5, 5), (5, 5), (3, 3)]
    info, documents, embeddings, known = contents(tmp_path / "i")
    assert (info["width"], info["precision"], info["metric"], info["complete"]) == (8, "float32", "cosine", True)
    assert (info["model"]["identity"], info["corpus"]["path"]) == ("1" * 64, "c.jsonl")
    assert [document for _, document in documents] == DOCUMENTS
    np.testing.assert_array_equal(embeddings, embed([document.text for document in DOCUMENTS]))
    np.testing.assert_array_equal(known, embed([f"question {n}" for n in range(0, 23, 4)]))
    assert begin_index(tmp_path / "i", info_of()) == 23
    assert run(tmp_path / "i", info_of(), encode=None) == []
    run(tmp_path / "i", info_of())
    same = info_of()
    same = dataclasses.replace(same, model={**same.model, "name": "n"}, corpus={**same.corpus, "path": "p"})
    assert begin_index(tmp_path / "i", same) == 23


@pytest.mark.parametrize("encode", [embed, embed_int8])
def test_interrupted_anywhere_it_resumes_after_the_last_commit(tmp_path, encode):
    info = info_of(precision="float32" if encode is embed else "int8")
    run(tmp_path / "whole", info, encode)
    for calls in range(6):

        def mortal(texts, calls=[calls]):  # noqa: B006
            if not calls[0]:
                raise KeyboardInterrupt
            calls[0] -= 1
            return encode(texts)

        path = tmp_path / f"part{calls}"
        if calls < 5:
            with pytest.raises(KeyboardInterrupt):
                run(path, info, mortal)
            assert begin_index(path, info) == 5 * calls
            check_refusal(lambda path=path: Index(path), str(path), "repeat the `endx encode` command")
        assert sum(new for _, new in run(path, info, encode)) == (23 if calls == 5 else 23 - 5 * calls)
        assert contents(path) == contents(tmp_path / "whole")


def test_a_second_process_is_noticed(tmp_path):
    path, info = tmp_path / "i", info_of()

    def encode(texts):
        if texts[0] == "text 5":
            run(path, info)
        return embed(texts)

    check_refusal(lambda: run(path, info, encode), "another process", str(path), "wait for it or stop it", kind=InUse)
    assert len(Index(path)) == 23


def test_the_corpus_is_read_as_it_is_encoded(tmp_path):
    read, when = [], []

    def documents():
        for document in DOCUMENTS:
            read.append(document.id)
            yield document

    def encode(texts):
        when.append(len(read))
        return embed(texts)

    run(tmp_path / "i", info_of(), encode, documents())
    assert when == [5, 10, 15, 20, 23]


FIRST, *REST = DOCUMENTS
CORPUS = "c.jsonl (23 documents, sha256"
NEXT = MODEL | {"identity": "2" * 64}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": NEXT}, "(identity 111111111111) (identity 222222222222)"),
        ({"model": MODEL | {"product_dtype": "bfloat16"}}, "product_dtype bfloat16"),
        ({"width": 3, "precision": "int8"}, "width 8, not 3; precision float32, not int8"),
        ({"shard": [1, 2]}, "the whole corpus, not shard 1 of 2"),
        ({"documents": DOCUMENTS[:-1]}, f"{CORPUS} (22 documents"),
        ({"documents": [*REST, FIRST]}, CORPUS),
        ({"documents": [dataclasses.replace(FIRST, id="e"), *REST]}, CORPUS),
        ({"documents": [dataclasses.replace(FIRST, text="e"), *REST]}, CORPUS),
        ({"documents": [dataclasses.replace(FIRST, metadata={"e": 1}), *REST]}, CORPUS),
    ],
)
@pytest.mark.parametrize("finished", [True, False])
def test_another_encoding_is_refused(tmp_path, change, words, finished):
    path = tmp_path / "i"
    run(path, info_of()) if finished else begin_index(path, info_of())
    before = path.read_bytes()
    check_refusal(lambda: begin_index(path, info_of(**change)), str(path), "Choose another output", *words.split())
    assert path.read_bytes() == before


def test_an_index_of_something_else_is_refused(tmp_path):
    make_index(tmp_path / "i")
    check_refusal(lambda: begin_index(tmp_path / "i", info_of()), "another index", "Choose another output")


@pytest.mark.parametrize(
    ("changed", "stored"),
    [
        (DOCUMENTS[:12], 10),
        ([*DOCUMENTS[:15], dataclasses.replace(DOCUMENTS[15], text="e"), *DOCUMENTS[16:]], 15),
        ([*DOCUMENTS[:7], Document("e", "text"), *DOCUMENTS[7:]], 5),
        (DOCUMENTS[::-1], 0),
    ],
)
@pytest.mark.parametrize("step", [5, 23])
def test_a_corpus_that_changes_meanwhile_is_refused_and_what_was_stored_is_right(
    tmp_path, monkeypatch, changed, stored, step
):
    monkeypatch.setattr("endx_jax.index.corpus_encoding.STEP", step)
    path, corpus = tmp_path / "i", survey(DOCUMENTS)
    check_refusal(lambda: run(path, info_of(), documents=unchanged(changed, corpus)), "changed", "encode it again")
    assert begin_index(path, info_of()) == (stored if step == 5 else 0)
    run(path, info_of(), documents=unchanged([*DOCUMENTS, FIRST], corpus))  # those that were appended are left out
    run(tmp_path / "whole", info_of())
    assert contents(path) == contents(tmp_path / "whole")


@pytest.mark.parametrize("count", [2, 3, 30])
def test_shards_are_joined_to_the_index_of_the_whole(tmp_path, count):
    run(tmp_path / "whole", info_of())
    shards = [tmp_path / f"shard{n}" for n in range(1, count + 1)]
    for n, shard in enumerate(shards, start=1):
        run(shard, info_of(shard=[n, count]))
    assert sum(len(shard_range(Index(shard).snapshot.info)) for shard in shards) == 23
    assert join_shards(tmp_path / "joined", shards[::-1]) == 23
    assert contents(tmp_path / "joined") == contents(tmp_path / "whole")


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """A folder of indexes: shards 1 to 4 of 4 and others."""
    folder = tmp_path_factory.mktemp("shards")
    corpus = info_of([*DOCUMENTS[:-1], Document("e", "")], shard=[4, 4])
    others = {"whole": info_of(), "third": info_of(shard=[3, 3]), "model": info_of(shard=[4, 4], model=NEXT)}
    others["german"] = info_of(shard=[4, 4], language="german")
    parts = {f"shard{n}": info_of(shard=[n, 4]) for n in range(1, 5)}
    for name, info in {**others, **parts, "corpus": corpus, "changed": parts["shard4"]}.items():
        run(folder / name, info)
    Index(folder / "changed").delete(["d22"])
    begin_index(folder / "begun", info_of(shard=[4, 4]))
    begin_index(folder / "many", info_of(shard=[1, 2**40]))
    return folder


@pytest.mark.parametrize(
    ("names", "output", "words"),
    [
        ("many", "new", "missing: 2, 3, 21, ... name the files of all"),
        ("shard1 shard2 shard3", "new", "4 shards missing: 4 name the files of all"),
        ("shard1 shard2 shard3 shard3", "new", "shard3 are both shard 3 of 4"),
        ("shard1 shard2 shard3 whole", "new", "whole name the files `endx encode --shard=I/N`"),
        ("shard1 shard2 shard3 third", "new", "third shard1: shard 3 of 3"),
        ("shard1 shard2 shard3 model", "new", "model shard1: (identity 222222222222) (identity 111111111111)"),
        ("shard1 shard2 shard3 german", "new", "german shard1: language german, not english --language"),
        ("shard1 shard2 shard3 corpus", "new", "corpus shard1: c.jsonl"),
        ("shard1 shard2 shard3 begun", "new", "begun not finished"),
        ("shard1 shard2 shard3 changed", "new", "changed encode this shard again"),
        ("shard1 shard2 shard3 shard4", "whole", "whole exists: name another output"),
    ],
)
def test_shards_that_do_not_make_a_whole_are_refused(shards, names, output, words):
    parts = [shards / name for name in names.split()]
    check_refusal(lambda: join_shards(shards / output, parts), *words.split())
    assert not (shards / "new").exists()


@pytest.mark.parametrize("encode", [embed, embed_int8])
def test_embeddings_of_unchanged_texts_are_taken_over(tmp_path, encode):
    precision = "float32" if encode is embed else "int8"
    run(tmp_path / "old", info_of(precision=precision), encode)
    new = [Document(f"e{n}", document.text) for n, document in enumerate(DOCUMENTS[::-1])]
    new = [*new, Document("e50", "text 4"), Document("e51", "another"), Document("e52", "text")]
    info, texts = info_of(new, precision=precision), []

    def noting(some):
        texts.extend(some)
        return encode(some)

    run(tmp_path / "afresh", info, encode, new)
    for name, deleted, encoded in (
        ("new", [], ["another", "text"]),
        ("later", ["d20", "d21"], ["text 21", "text 20", "another", "text"]),
        ("last", [f"d{n}" for n in range(23)], [document.text for document in new]),
    ):
        texts.clear()
        reuse = Reuse(tmp_path / "old", info)
        Index(tmp_path / "old").delete(deleted, missing_ok=True)  # after the index was opened
        run(tmp_path / name, info, noting, new, reuse)
        assert texts == encoded
        assert contents(tmp_path / name) == contents(tmp_path / "afresh")


def test_embeddings_of_another_model_are_not_taken_over(tmp_path):
    run(tmp_path / "old", info_of())
    check_refusal(
        lambda: Reuse(tmp_path / "old", info_of(width=3, model=NEXT)),
        *("reuse=", "old", "model m", "width 8, not 3", "name another, or leave it out"),
    )
