import functools
import json
import re
import shlex
import types

import numpy as np
import pytest
from tiny_bert import tiny_recipe

from endx_jax.data.sets.records import Pools, RetrievalSet
from endx_jax.data.settings import DataSettings
from endx_jax.data.sources import read_splits
from endx_jax.experiment import run_index as searched
from endx_jax.experiment import served as served_models
from endx_jax.experiment.run import run
from endx_jax.experiment.workdir import read_config
from endx_jax.index.index import Index
from endx_jax.json_files import shown
from endx_jax.ranking import hybrid
from endx_jax.ranking.hybrid import Hybrid
from endx_jax.ranking.results import Results
from endx_jax.ranking.systems import evaluate_dense


@pytest.fixture
def config(tiny_bert, tmp_path):
    """A run of two steps on questions that share a word with their answers, half of which are held out."""
    rows = [f"where is word{n} kept,word{n} is on the mat {n}" for n in range(40)]
    (tmp_path / "faq.csv").write_text("\n".join(["Question,Reply", *rows]) + "\n")
    config = tiny_recipe(tiny_bert, tmp_path / "faq.csv", encoder="none")
    config.data.validation_fraction = config.data.test_fraction = 0.25
    config.data.answer_column = "Reply"
    config.train.steps = 2
    return config


def best(endx, *arguments) -> str:
    (line,) = endx("search", *arguments, "--format=jsonl").out.splitlines()
    return json.loads(line)["answers"][0]["text"]


def test_a_question_of_the_training_data_finds_its_answer_with_a_fusion_fitted_in_validation(
    config, tmp_path, endx, capsys, monkeypatch
):
    monkeypatch.setattr(served_models, "FEWEST", 5)
    monkeypatch.setattr(hybrid, "ENOUGH", 5)
    monkeypatch.setattr(hybrid, "GRID", (0.0, 1.5))
    results = run(config, tmp_path / "run")
    splits = read_splits(read_config(tmp_path / "run").data)
    others = len(splits.train.candidates) + len(splits.validation.candidates)
    assert f"encoding {others} other answers for the index\n" in capsys.readouterr().out
    index = Index(tmp_path / "run" / "index.sqlite")
    assert str(index) == f"40 documents with 40 known questions (all answers of {shown(f'{tmp_path}/faq.csv')})"
    for part in (splits.train, splits.validation, splits.test):
        answer = part.candidates[part.qrels[0][0]]
        assert best(endx, f"--workdir={tmp_path / 'run'}", part.questions[0]) == answer
        assert best(endx, f"--workdir={tmp_path / 'run'}", "--mode=bm25", part.questions[0]) == answer
    evaluated = json.loads((tmp_path / "run" / "results.json").read_text())["evaluations"]
    assert {found["candidates"] for found in evaluated} == {len(splits.test.candidates)}  # a pool of its own
    stored = json.loads((tmp_path / "run" / "model" / "endx.json").read_text())["hybrid"]
    assert stored["questions"] == len(splits.validation.questions) >= 5
    assert stored["weight"] == 1.5  # the tiny tower ranks by chance, and the words are always right
    systems = results.evaluations["all"]
    assert systems["hybrid"].metrics["mrr"] == 1 > systems["trained"].metrics["mrr"]
    line = f"dense + {stored['weight']:.2f} x BM25 (weight: fitted on {stored['questions']} validation questions)"
    assert line in results.tables()
    assert line in endx("search", f"--workdir={tmp_path / 'run'}", "word3").err
    assert line in endx("evaluate", f"--workdir={tmp_path / 'run'}").out


def test_too_many_answers_are_left_to_a_command(config, tmp_path, endx, capsys, monkeypatch, variables):
    monkeypatch.setattr(searched, "FEW", 0)
    variables(HOME=str(tmp_path))
    table = (tmp_path / "faq.csv").read_text().replace("Question,Reply", "Asked,Said")
    (tmp_path / "faq").mkdir()
    for split in ("train", "dev"):
        (tmp_path / "faq" / f"{split}.csv").write_text(table)
    config.data.path, config.data.question_column, config.data.answer_column = "~/faq", "Asked", "Said"
    config.train.global_batch_size = 8  # two steps: work for the encoding of nine texts
    run(config, tmp_path / "run")
    said = capsys.readouterr().out
    splits = read_splits(read_config(tmp_path / "run").data)
    test = splits.test
    assert f"the index holds the {len(test.candidates)} held-out answers: the others would take more than" in said
    index = Index(tmp_path / "run" / "index.sqlite")
    source = "(held-out answers of '~/faq')"
    assert str(index) == f"{len(test.candidates)} documents with {len(test.questions)} known questions {source}"
    encode, search = re.search(r"To search all: endx (.*); endx search (.*)\n", said).groups()
    endx(*shlex.split(encode))
    assert " with 40 known questions " in str(Index(tmp_path / "run" / "all-answers.sqlite"))
    assert best(endx, *shlex.split(search), splits.train.questions[0]) == splits.train.candidates[0]


def test_answers_of_a_test_file_come_first_and_those_of_a_mixtures_further_sets_are_left_out(config, tmp_path):
    shared = "".join(f"where is word{n} kept,elsewhere\n" for n in range(40))
    (tmp_path / "more.csv").write_text(f"question,Reply\nwho is it,elsewhere\n{shared}")
    config.data.mixture = ((str(tmp_path / "more.csv"), 1.0, "", "say: "),)
    (tmp_path / "test.csv").write_text("question,Reply\nwhere is it,nowhere\nwhere was word3,word3 is on the mat 3\n")
    config.data.test_path = str(tmp_path / "test.csv")
    run(config, tmp_path / "run")
    index = Index(tmp_path / "run" / "index.sqlite")
    assert len(index) == 41
    assert index.snapshot.info.corpus["path"] == f"{tmp_path}/faq.csv and {tmp_path}/test.csv"
    documents = [document for _, document in index.snapshot]
    first = [(document.id, document.text) for document in documents[:2]]
    assert first == [("d0", "nowhere"), ("d1", "word3 is on the mat 3")]
    assert len({document.text for document in documents}) == 41
    assert {"d0+", "d1+"} < {document.id for document in documents}  # both files have these ids
    assert not any("elsewhere" in document.text for document in documents)


ASKED = [("how to pay", "by card"), ("what is paid with", "by card"), ("who", "she")]


def asking(train, test) -> tuple:
    """A run without a model, and the results of its test set, ranked by embeddings that see only the first letter."""
    encode = lambda params, side, texts: np.float32([[text[0] == letter for letter in "hwb"] for text in texts])  # noqa: E731
    towers = types.SimpleNamespace(normalize=True)
    settings = types.SimpleNamespace(data=DataSettings(path="pairs.csv"), model=towers)
    data = types.SimpleNamespace(train=train, validation=test, test=test)
    results = Results("pairs.csv", "test", Pools(all=test), Hybrid())
    dense = evaluate_dense(functools.partial(encode, {}), results.pools, fuse=results.fuse)
    plan = types.SimpleNamespace(steps=0, global_batch_size=0)
    served = served_models.Served({}, Hybrid(known=0.5), Hybrid(), {})
    return types.SimpleNamespace(settings=settings, data=data, encoder=encode, plan=plan), served, results, dense


def test_train_questions_of_held_out_answers_are_a_row_of_their_own_and_held_out_ones_never_count():
    train, test = RetrievalSet.from_pairs(ASKED), RetrievalSet.from_pairs([("hello", "by card"), ("who", "she")])
    run, served, results, dense = asking(train, test)
    documents, known = searched.with_known(run, served, test.documents, results, dense)
    assert [document.questions for document in documents] == [("how to pay", "what is paid with", "hello"), ("who",)]
    assert known.tolist() == [[1, 0, 0], [0, 1, 0], [1, 0, 0], [0, 1, 0]]
    # "who" is a question of the train set too, but held out: so "she" is not known by it, and its answer has no other.
    assert results.evaluations["all"]["known"].ranks.tolist() == [[1], [2]]
    (line,) = results.notes
    assert line.startswith("known: hybrid search with 2 train questions as known questions of their answers, of wei")
    assert line.endswith("ght 0.5; 1 of 2 questions have such an answer")


@pytest.mark.parametrize(("train", "count"), [(ASKED[:2], "0 of 1"), (ASKED, "1 of 2")])
def test_a_line_says_that_known_questions_were_not_measured(train, count, capsys, monkeypatch):
    monkeypatch.setattr(searched, "LEAST_SHARE", 0.6)
    test = ASKED[2:] if len(train) == 2 else [("hello", "by card"), ("who", "she")]
    run, served, results, dense = asking(RetrievalSet.from_pairs(train), RetrievalSet.from_pairs(test))
    searched.with_known(run, served, results.pools.primary.documents, results, dense)
    assert "known" not in results.evaluations.get("all", {})
    said = capsys.readouterr().out
    assert f"measure this, as {count} held-out questions have an answer with other known questions" in said


def test_nothing_is_encoded_where_the_pool_holds_all_answers(capsys):
    pool, embeddings = RetrievalSet.from_pairs([("where", "here"), ("who", "she")]), np.eye(2)
    run, *_ = asking(pool, pool)
    run.encoder = None
    documents, found, about = searched.searched_answers(run, {}, pool, embeddings)
    assert [document.text for document in documents] == ["here", "she"]
    assert found is embeddings
    assert about == {"part": "all answers of ", "path": "pairs.csv"}
    assert not capsys.readouterr().out
