"""A student that learns a teacher's embeddings, and then searches the index that the teacher made."""

import dataclasses
import json

import numpy as np
import pytest
from helpers import logged_steps, one_device, written
from refusals import check_refusal
from tiny_bert import WIDTH, WORDS, tiny_recipe

import endx_jax
from endx_jax.cli import encode
from endx_jax.data.sets.documents import Document
from endx_jax.experiment.run import run
from endx_jax.experiment.workdir import INDEX
from endx_jax.index.index import Index
from endx_jax.index.index_model import open_index
from endx_jax.inference.merging import merge_models
from endx_jax.methods.embedding_distillation import EmbeddingDistillationSettings

DRAW = np.random.default_rng(0)
QUESTIONS, ANSWERS = ([" ".join(DRAW.choice(WORDS, 5)) for _ in range(120)] for _ in range(2))


@pytest.fixture(scope="module")
def plain(tiny_bert, tmp_path_factory):
    """The config of a dual encoder on these texts."""
    file = tmp_path_factory.mktemp("data") / "pairs.csv"
    lines = ["question,answer", *map(",".join, zip(QUESTIONS, ANSWERS, strict=True))]
    file.write_text("\n".join(lines) + "\n")
    return tiny_recipe(tiny_bert, file, encoder="none")


@pytest.fixture(scope="module")
def config(plain, trained_workdir):
    """A new projection of the token table, whose means of word vectors point in all directions, as the teacher's do."""
    config = plain.copy_and_resolve_references()
    config.objective = dataclasses.asdict(EmbeddingDistillationSettings(teacher=str(trained_workdir)))
    config.model.projection = WIDTH
    config.optimizer.learning_rate, config.optimizer.warmup_steps = 1e-2, 5
    config.train.steps = config.train.checkpoint_every = 60
    return config


@pytest.fixture(scope="module")
def student(config, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("distilled")
    with one_device():
        run(config, workdir)
    return workdir


@pytest.fixture(scope="module")
def index(trained_workdir, tmp_path_factory):
    """An index by the teacher of the questions themselves, each the right document of its question."""
    folder = tmp_path_factory.mktemp("index")
    lines = [json.dumps({"_id": str(n), "text": text}) for n, text in enumerate(QUESTIONS)]
    corpus = written(folder / "corpus.jsonl", "\n".join(lines) + "\n")
    encode.main([f"--model={trained_workdir}", f"--corpus={corpus}", f"--output={folder / 'index.sqlite'}"])
    return folder / "index.sqlite"


def found(index, model) -> float:
    """Mean reciprocal rank of the questions' own documents."""
    found = open_index(index, model).search(QUESTIONS, len(QUESTIONS), mode="dense")
    ranks = [next(one.rank for one in ranked if one.document.id == str(n)) for n, ranked in enumerate(found)]
    return float(np.mean(1 / np.array(ranks)))


def test_the_student_searches_the_teacher_s_index(student, index, endx):
    assert found(index, student) > 0.6  # by chance it is 0.04
    cosines = [line["teacher_cosine"] for line in logged_steps(student)]
    assert cosines[0] < 0.5 < 0.9 < cosines[-1]
    printed = endx("search", f"--index={index}", f"--model={student}", "--mode=dense", "--top=1", QUESTIONS[7])
    assert QUESTIONS[7] in printed.out


def test_a_student_learns_from_documents_alone(config, tmp_path):
    lines = [json.dumps({"title": title, "text": text}) for title, text in zip(QUESTIONS, ANSWERS, strict=True)]
    config = config.copy_and_resolve_references()
    config.data.path, config.data.format = str(written(tmp_path / "corpus.jsonl", "\n".join(lines) + "\n")), "documents"
    config.train.steps = config.train.checkpoint_every = 2
    run(config, tmp_path / "run")
    assert len(logged_steps(tmp_path / "run")) == 2
    indexed = [document for _, document in Index(tmp_path / "run" / INDEX).snapshot]
    assert sorted(document.metadata["title"] for document in indexed) == sorted(QUESTIONS)
    assert not any(document.questions for document in indexed)


def test_only_the_teacher_s_index_is_searched_and_no_documents_are_added(student, index, bert_workdir, endx):
    refused = endx("search", f"--index={index}", f"--model={bert_workdir}", "--mode=dense", "who", status=2)
    assert f"not by {bert_workdir}" in refused.err
    check_refusal(lambda: open_index(bert_workdir, student).search("a dog"), "was encoded by")
    check_refusal(lambda: open_index(index, student).add([Document("new", "a dog")]), "was encoded by")
    assert open_index(student).add([Document("new", "a dog")]) == 0


def test_copies_of_the_student_know_their_teacher(student, trained_workdir, bert_workdir, tmp_path):
    model, identity = endx_jax.load(student), endx_jax.load(trained_workdir).identity
    assert (model.teacher, endx_jax.load(bert_workdir).teacher) == (identity, "")
    merge_models([str(student), str(student)], tmp_path / "merged")
    assert endx_jax.load(tmp_path / "merged").teacher == identity
