"""Documents of several passages: they are searched by passages, and found, counted, changed and judged as documents."""

import json

import numpy as np
import pytest
from helpers import searching
from small_index import MODEL, make_index

from endx_jax.data.sets.documents import Document, passages_of
from endx_jax.data.sets.examples import Example, Judgements
from endx_jax.index.approximate import ENGINES
from endx_jax.index.corpus_encoding import begin_index, encode_missing, survey
from endx_jax.index.index import Index
from endx_jax.index.index_evaluation import evaluate_answered, evaluate_judged, find_rows
from endx_jax.index.index_file import COSINE, IndexInfo
from endx_jax.index.shards import join_shards
from endx_jax.ranking.hybrid import Hybrid

WIDTH = 16


def book(name: str, count: int, **metadata) -> list[Document]:
    texts = [f"{name} word{n}" for n in range(count)]
    return passages_of(Document(name, "", {"title": name.title(), **metadata}, (f"ask {name}",)), texts)


# The first document alone has more passages than are fetched at first.
CORPUS = [*book("long", 60, n=1), Document("whole", "whole word7", {"n": 2}), *book("short", 3, n=3)]


def embed(texts) -> np.ndarray:
    """Embeds texts that share words near each other; those of the long document are nearest to any question."""
    seeds = [sum(map(ord, text.split()[-1])) for text in texts]
    rows = np.stack([np.random.default_rng(seed).normal(size=WIDTH) for seed in seeds])
    rows[:, 0] += [9 if "long" in text.lower() else 3 for text in texts]
    return np.float32(rows / np.linalg.norm(rows, axis=1, keepdims=True))


def write(path, documents=CORPUS) -> Index:
    known = embed([question for document in documents for question in document.questions])
    return make_index(path, embed([document.text for document in documents]), documents, known=known)


@pytest.fixture
def index(tmp_path) -> Index:
    return write(tmp_path / "i")


def ids_of(index) -> dict[int, str]:
    return {row: document.id for row, document in index.snapshot}


def best_by_document(questions: list[str], documents=CORPUS) -> list[list[str]]:
    """Ids by the plain definition: a document has the score of its best passage."""
    scores = embed(questions) @ embed([document.text for document in documents]).T
    best = [{} for _ in questions]
    for line, values in zip(best, scores.tolist(), strict=True):
        for document, value in zip(documents, values, strict=True):
            line[document.id] = max(value, line.get(document.id, -2))
    return [sorted(line, key=line.get, reverse=True) for line in best]


def test_passages_have_the_title_and_the_first_one_all_other_fields():
    whole = Document("a", "one\n\ntwo", {"title": "t" * 300, "n": 1}, ("q",))
    first, second = passages_of(whole, ["one", "two"])
    assert first == Document("a", f"{'t' * 200} one", whole.metadata, ("q",), 1)
    assert second == Document("a", f"{'t' * 200} two", passage=2)
    assert passages_of(Document("a", "", {"n": 1}), ["one"]) == [Document("a", "one", {"n": 1})]


@pytest.mark.parametrize("engine", ["exact", *ENGINES])
def test_k_counts_documents_and_each_is_its_best_passage(index, engine):
    questions = ["x word7", "y word2", "z word40"]
    search = searching(index, embed, engine=engine, hybrid=Hybrid(known=0))
    for answers, right in zip(search.search(questions, 3, mode="dense"), best_by_document(questions), strict=True):
        assert [answer.document.id for answer in answers] == right
        for answer in answers:
            of = [document for document in CORPUS if document.id == answer.document.id]
            scores = embed([document.text for document in of]) @ embed(questions[:1]).T
            if answers[0].document.text.endswith("word7"):  # the first question
                assert answer.document.text == of[int(scores.argmax())].text
    assert search.search([], 2, mode="dense") == []


@pytest.mark.parametrize("mode", ["dense", "bm25", "hybrid"])
def test_every_mode_finds_a_document_once_with_its_metadata_and_its_passage(index, mode):
    search = searching(index, embed, embed, hybrid=Hybrid(known=1.0))
    for where, names in (
        (None, {"long", "whole", "short"}),
        ({"n": 3}, {"short"}),
        ({"n": {"lt": 3}}, {"long", "whole"}),
    ):
        (found,) = search.search(["word1 word7"], 10, mode=mode, where=where)
        assert len(found) == len({answer.document.id for answer in found})
        assert {answer.document.id for answer in found} <= names
        assert {answer.document.id for answer in found} == names or mode == "bm25"
    for answer in found:
        assert answer.document.metadata.get("title", "Whole") == answer.document.id.title()
    (by_question,) = search.search(["ask short"], 1, mode=mode)
    assert (by_question[0].document.id, by_question[0].document.questions) == ("short", ("ask short",))


@pytest.mark.parametrize("mode", ["dense", "bm25", "hybrid"])
def test_a_question_has_the_same_answers_alone_and_beside_one_whose_best_passages_are_of_one_document(tmp_path, mode):
    documents = [*book("long", 600), *(text for n in range(40) for text in book(f"short{n}", 5))]
    questions, embeddings = ["word1 word599", "long"], np.zeros((2, WIDTH), np.float32)
    embeddings[:, 0] = -1, 1  # the first question is far from the document that has its word
    search = searching(write(tmp_path / "i", documents), hybrid=Hybrid(1.0)).search
    together = search(questions, 10, mode=mode, embeddings=embeddings)
    for n, answers in enumerate(together):
        alone = search(questions[n], 10, mode=mode, embeddings=embeddings[n : n + 1])
        assert [answer.document for answer in answers] == [answer.document for answer in alone]
        assert [answer.score for answer in answers] == pytest.approx([answer.score for answer in alone])


def test_a_document_is_read_replaced_and_deleted_as_a_whole_everywhere(index):
    other, search = Index(index.path), searching(index, embed, embed)
    assert (len(index), index.snapshot.passages, len(index.snapshot.known)) == (3, 64, 2)
    assert "3 documents in 64 passages with 2 known questions" in str(index)
    whole = index.get("short")
    assert whole.text == "short word0\n\nshort word1\n\nshort word2"
    assert (whole.metadata, whole.questions, whole.passage) == ({"title": "Short", "n": 3}, ("ask short",), 0)
    assert search.add(book("long", 2), replace=True) == 1
    for seen in (index, other, Index(index.path)):
        names = [document.name for _, document in seen.snapshot]
        assert sorted(names) == ["long#1", "long#2", "short#1", "short#2", "short#3", "whole"]
    search.add([Document("short", "now whole"), Document("short#2", "of its own")], replace=True)
    assert (index.get("short").text, len(other.snapshot)) == ("now whole", 4)
    assert index.delete(["long"]) == 1
    assert ("long" in other, other.get("long"), len(other.snapshot.known)) == (False, None, 0)
    assert {document.name for _, document in other.snapshot} == {"whole", "short", "short#2"}


def test_a_document_that_is_replaced_while_it_is_read_is_the_old_or_the_new_one(index, monkeypatch):
    other, rows, states = Index(index.path), index._store.rows, [index.get("short")]

    def later(query, *values):
        new = Document("short", f"text {len(states)}", {}, (f"ask {len(states)}",))
        other.add([new], embed([new.text]), known=embed(new.questions), replace=True)
        states.append(new)
        return rows(query, *values)

    monkeypatch.setattr(index._store, "rows", later)
    assert index.get("short") in states
    assert "short" in index
    assert len(states) > 2


def test_judgements_and_answers_are_of_documents(index):
    questions = ["x word7", "y word2"]
    judged = Judgements(("q0", "q1"), tuple(questions), ({"whole": 1}, {"short": 2, "long": 1}), ((), ()))
    found = evaluate_judged(index.snapshot, find_rows(index.snapshot, judged), embed(questions), depth=10)
    right = best_by_document(questions)
    assert found.ranks[0][0] == 1 + right[0].index("whole")
    assert sorted(found.ranks[1]) == sorted(1 + right[1].index(name) for name in ("short", "long"))
    assert (found.candidates, found.top_ids.shape) == (3, (2, 3))
    names = [[ids_of(index)[row] for row in rows] for rows in found.top_ids]
    assert names == right
    answered = [Example(question, ("whole",)) for question in questions]
    by_answer = evaluate_answered(index.snapshot, answered, embed(questions), cutoffs=(1, 3))
    assert by_answer.ranks.tolist() == [[1 + names.index("whole")] for names in right]
    assert by_answer.top_ids.tolist() == found.top_ids.tolist()


def test_shards_may_cut_a_document_and_are_joined(tmp_path):
    surveyed = survey(CORPUS)
    corpus = {"path": "c", "documents": surveyed.documents, "sha256": surveyed.sha256}
    about = {"metric": COSINE, "model": MODEL, "complete": False}

    def encode(name, **shard):
        info = IndexInfo(WIDTH, "float32", corpus=corpus | shard, **about)
        assert begin_index(tmp_path / name, info) == 0
        assert [*encode_missing(tmp_path / name, info, CORPUS, embed, encode_question=embed)]
        return tmp_path / name

    parts = [encode(f"{n}", shard=[n, 3]) for n in (1, 2, 3)]
    assert join_shards(tmp_path / "joined", parts) == 64
    whole, joined_parts = Index(encode("whole")), Index(tmp_path / "joined")
    assert [*joined_parts.snapshot] == [*whole.snapshot]
    assert (len(joined_parts), len(joined_parts.snapshot.known)) == (3, 2)
    assert joined_parts.get("long") == whole.get("long")


def test_a_line_of_json_names_the_passage(index):
    from endx_jax.cli.answers import NamedQuestion, to_jsonl, to_text

    answers = searching(index, embed).search(["x word2"], 3, mode="dense")[0]
    listed = json.loads(to_jsonl(NamedQuestion("1", "x"), answers))["answers"]
    assert [(one["id"], one.get("passage")) for one in listed] == [
        (answer.document.id, answer.document.passage or None) for answer in answers
    ]
    assert f"passage {answers[0].document.passage} · Long" in to_text(answers)
