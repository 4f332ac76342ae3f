import dataclasses
import zlib

import jax
import numpy as np
import pytest
from helpers import one_line_error, refused

from endx_jax.data.sets.documents import Document
from endx_jax.errors import InUse
from endx_jax.index import corpus_encoding
from endx_jax.index.corpus_encoding import Reuse, begin_index, encode_missing, survey
from endx_jax.index.index import Index, write_index
from endx_jax.index.index_file import IndexInfo
from endx_jax.index.shards import join_shards, shard_range
from endx_jax.numerics import Quantized

# Every fourth has a known question.
DOCUMENTS = [
    Document(f"d{n}", f"text {n}", {"n": n} if n % 3 else {}, () if n % 4 else (f"question {n}",)) for n in range(23)
]


@pytest.fixture(autouse=True)
def small_commits(monkeypatch):
    monkeypatch.setattr(corpus_encoding, "STEP", 5)


def info_of(documents=DOCUMENTS, *, shard=None, **changes) -> IndexInfo:
    found = survey(documents)
    corpus = {"path": "c.jsonl", "documents": found.documents, "sha256": found.sha256}
    settings = {"model": {"name": "m", "identity": "1" * 64}, "corpus": corpus | ({"shard": shard} if shard else {})}
    settings |= {"width": 4, "precision": "float32", "metric": "cosine", "complete": False}
    return IndexInfo(**settings | changes)


def embed(texts) -> np.ndarray:
    return np.stack([np.random.default_rng(zlib.crc32(text.encode())).normal(size=4) for text in texts]).astype("f4")


def embed_int8(texts) -> Quantized:
    rows = embed(texts)
    return Quantized((50 * rows).astype(np.int8), abs(rows[:, 0]))


def run(path, info, encode=embed, documents=DOCUMENTS, reuse=None) -> list[tuple[int, int]]:
    begin_index(path, info)
    of_questions = embed if info.precision == "float32" else embed_int8
    return [*encode_missing(path, info, documents, encode, encode_question=of_questions, reuse=reuse)]


def contents(path):
    index = Index(path)
    info = dataclasses.asdict(dataclasses.replace(index.snapshot.info, content=""))
    known = jax.tree.map(np.ndarray.tolist, index.snapshot.known.embeddings[:])
    return info, [*index.snapshot], index.snapshot.vectors(0, len(index)).tolist(), known


def test_a_corpus_becomes_an_index(tmp_path):
    assert run(tmp_path / "i", info_of()) == [(5, 5), (5, 5), (5, 5), (5, 5), (3, 3)]
    info, documents, embeddings, known = contents(tmp_path / "i")
    assert (info["width"], info["precision"], info["metric"], info["complete"]) == (4, "float32", "cosine", True)
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
            refused("is not finished: repeat the `endx encode` command that began it", Index, path)
        assert sum(new for _, new in run(path, info, encode)) == (23 if calls == 5 else 23 - 5 * calls)
        assert contents(path) == contents(tmp_path / "whole")


def test_a_second_process_is_noticed(tmp_path):
    path, info = tmp_path / "i", info_of()

    def encode(texts):
        if texts[0] == "text 5":
            run(path, info)
        return embed(texts)

    with pytest.raises(InUse, match="another process encodes documents into .*: wait for it or stop it"):
        run(path, info, encode)
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


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"model": {"name": "m", "identity": "2" * 64}}, "model m (identity 111111111111), not m (identity 2222"),
        ({"model": {"name": "m", "identity": "1" * 64, "product_dtype": "bfloat16"}}, "product_dtype unknown, not bfl"),
        ({"width": 3, "precision": "int8"}, "width 4, not 3; precision float32, not int8"),
        ({"shard": [1, 2]}, "the whole corpus, not shard 1 of 2"),
    ],
)
@pytest.mark.parametrize("finished", [True, False])
def test_another_encoding_is_refused(tmp_path, change, difference, finished):
    path = tmp_path / "i"
    run(path, info_of()) if finished else begin_index(path, info_of())
    before = path.read_bytes()
    with one_line_error("holds another index: .*Choose another output") as refusal:
        begin_index(path, info_of(**change))
    assert difference in str(refusal.value)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "changed",
    [DOCUMENTS[:-1], [*DOCUMENTS[1:], DOCUMENTS[0]]]
    + [[dataclasses.replace(DOCUMENTS[0], **{k: v}), *DOCUMENTS[1:]] for k, v in (("id", "e"), ("text", "e"))]
    + [[dataclasses.replace(DOCUMENTS[0], metadata={"e": 1}), *DOCUMENTS[1:]]],
)
def test_another_corpus_is_refused(tmp_path, changed):
    run(tmp_path / "i", info_of())
    with one_line_error(r"holds another index: corpus c.jsonl \(23 documents, sha256 .*, not c.jsonl \(2"):
        begin_index(tmp_path / "i", info_of(changed))


def test_a_corpus_that_shrinks_meanwhile_or_an_index_of_something_else_is_refused(tmp_path):
    write_index(tmp_path / "i", np.ones((1, 4), "f4"), DOCUMENTS[1:2], metric="cosine", model={"name": "m"})
    refused("holds another index", begin_index, tmp_path / "i", info_of())
    refused("is shorter than when it was first read", run, tmp_path / "shrinks", info_of(), documents=DOCUMENTS[:12])
    assert run(tmp_path / "shrinks", info_of()) == [(5, 5), (5, 5), (3, 3)]


@pytest.mark.parametrize("count", [2, 3, 30])
def test_shards_are_joined_to_the_index_of_the_whole(tmp_path, count):
    run(tmp_path / "whole", info_of())
    shards = [tmp_path / f"shard{n}" for n in range(1, count + 1)]
    for n, shard in enumerate(shards, start=1):
        run(shard, info_of(shard=[n, count]))
    assert sum(len(shard_range(Index(shard).snapshot.info)) for shard in shards) == 23
    assert join_shards(tmp_path / "joined", shards[::-1]) == 23
    assert contents(tmp_path / "joined") == contents(tmp_path / "whole")


def test_shards_that_do_not_make_a_whole_are_refused(tmp_path):
    shards = [tmp_path / f"shard{n}" for n in range(1, 5)]
    for n, shard in enumerate(shards, start=1):
        run(shard, info_of(shard=[n, 4]))
    run(tmp_path / "whole", info_of())
    run(tmp_path / "third", info_of(shard=[3, 3]))
    run(tmp_path / "model", info_of(shard=[4, 4], model={"name": "n", "identity": "2" * 64}))
    run(tmp_path / "corpus", info_of([*DOCUMENTS[:-1], Document("e", "")], shard=[4, 4]))
    begin_index(tmp_path / "begun", info_of(shard=[4, 4]))
    begin_index(tmp_path / "many", info_of(shard=[1, 2**40]))
    refused(r"these are missing: 2, 3, .* 21, \.\.\.; name the", join_shards, tmp_path / "joined", [tmp_path / "many"])
    for last, message in (
        ([], "of 4 shards these are missing: 4; name the files of all"),
        ([shards[2]], "shard3 and .*shard3 are both shard 3 of 4"),
        (["whole"], "whole is not a shard: name the files that `endx encode --shard=I/N` wrote"),
        (["third"], "third does not fit .*shard1: it is shard 3 of 3, of another number"),
        (["model"], r"model does not fit .*shard1: model n \(identity 222222222222\), not m"),
        (["corpus"], "corpus does not fit .*shard1: corpus c.jsonl"),
        (["begun"], "begun is not finished"),
    ):
        refused(message, join_shards, tmp_path / "joined", [*shards[:3], *(tmp_path / name for name in last)])
    Index(shards[3]).delete(["d22"])
    with one_line_error("shard4 was changed since it was encoded: encode this shard again"):
        join_shards(tmp_path / "joined", shards)
    shards[3].unlink()
    run(shards[3], info_of(shard=[4, 4]))
    refused("whole exists: name another output", join_shards, tmp_path / "whole", shards)
    assert not (tmp_path / "joined").exists()


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

    run(tmp_path / "new", info, noting, new, Reuse(tmp_path / "old", info))
    assert texts == ["another", "text"]
    run(tmp_path / "afresh", info, encode, new)
    assert contents(tmp_path / "new") == contents(tmp_path / "afresh")


def test_embeddings_of_another_model_are_not_taken_over(tmp_path):
    run(tmp_path / "old", info_of())
    with one_line_error("reuse=.*old is another index: model m .*; width 4, not 3; name another, or leave it out"):
        Reuse(tmp_path / "old", info_of(width=3, model={"name": "m", "identity": "2"}))
