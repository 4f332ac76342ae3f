import dataclasses
import json

import numpy as np
import pytest
from helpers import mesh_of, trained_params, written
from late_folders import FIXED, NATIVE, POOLING, write_json, write_multi_vector
from refusals import check_refusal
from tiny_bert import WORDS, tiny_recipe

import endx_jax
from endx_jax.cli import evaluate, mine, search
from endx_jax.experiment.prepared_run import notes
from endx_jax.experiment.run import prepare_run, run
from endx_jax.experiment.saved_model import load_pair_scorer, read_model
from endx_jax.methods.late import LateSettings
from endx_jax.models.lora import is_adapter
from endx_jax.models.token_embeddings import TokenSettings
from endx_jax.parallel.sharding import parameter_paths

DRAW = np.random.default_rng(0)
ROWS = [" ".join(DRAW.choice(WORDS, 3)) + f",{n} " + " ".join(DRAW.choice(WORDS, 5)) for n in range(120)]


@pytest.fixture(scope="module")
def config(tiny_bert, tmp_path_factory):
    file = written(tmp_path_factory.mktemp("data") / "pairs.csv", "\n".join(["question,answer", *ROWS]) + "\n")
    config = tiny_recipe(tiny_bert, file, encoder="none")
    config.objective = dataclasses.asdict(LateSettings())
    config.model.pooling, config.model.projection = "tokens", 8
    return config


@pytest.fixture(scope="module")
def workdir(config, tmp_path_factory):
    """A run that was stopped after three of its six steps and resumed."""
    folder = tmp_path_factory.mktemp("late")
    config.train.stop_at_step = 3
    assert run(config, folder) is None
    config.train.stop_at_step = 0
    run(config, folder)
    return folder


def test_the_results_have_the_rows_of_any_model_by_embeddings(workdir, config):
    systems = endx_jax.json_files.read_json_file(workdir / "results.json")["systems"]
    assert [*systems] == ["bm25", "untrained", "untrained hybrid", "trained", "hybrid"]
    assert run(config, workdir) is None  # it is finished
    assert "one for each token" in (workdir / "model" / "README.md").read_text()


def test_the_model_is_evaluated_by_maxsim(workdir, config):
    model = endx_jax.load(workdir)
    results = endx_jax.evaluate(model, config.data.path, reverse=True)
    records = results.pools.primary
    question, answers = model.encode_query(records.questions[:1]), model.encode_document(records.candidates)
    best = results.evaluations[results.pools.primary_name][workdir.name]
    np.testing.assert_allclose(best.top_scores[0, 0], model.similarity(question, answers).max(), rtol=1e-5)
    ranked = results.reverse.evaluations[results.reverse.pools.primary_name][workdir.name]
    asked = model.similarity(model.encode_query(records.questions), answers[:1])
    np.testing.assert_allclose(ranked.top_scores[0, 0], asked.max(), rtol=1e-5)


@pytest.mark.parametrize("pooling", ["", "tokens"])
def test_a_published_model_is_trained_with_its_expansion_and_skip_list(config, pooling, tmp_path):
    config = config.copy_and_resolve_references()
    folder = write_multi_vector(
        tmp_path / "published",
        modules=NATIVE | {"4_Pooling": POOLING},
        transformer={"query_expansion": FIXED},
        mask={"skiplist_words": [".", "?"]},
    )
    write_json(folder / "4_Pooling" / "config.json", {"pool_factor": 3})
    config.model.update(pretrained=str(folder), encoder="", pooling=pooling)
    prepared = prepare_run(config, tmp_path / "run")
    assert prepared.settings.model.tokens == TokenSettings((".", "?"), 12)
    assert any("HierarchicalTokenPooling" in line for line in notes(prepared))
    assert any("the projection" in line and "model.projection=0" in line for line in notes(prepared))
    config.model.tokens.expand, config.model.projection = 6, 0
    prepared = prepare_run(config, tmp_path / "run")
    assert prepared.settings.model.tokens == TokenSettings(expand=6)
    assert prepared.settings.model.projection == 4  # the folder's
    assert not any("the projection" in line for line in notes(prepared))


@pytest.mark.slow
def test_adapters_and_the_projection_learn(config, tmp_path):
    config = config.copy_and_resolve_references()
    config.model.encoder, config.model.lora.rank, config.train.steps = "", 2, 3
    run(config, tmp_path)
    found, params = read_model(tmp_path), trained_params(tmp_path)
    before, after = map(parameter_paths, (found.initial_params(), params))
    changed = {path for path, leaf in after.items() if not np.array_equal(leaf, np.asarray(before[path]))}
    assert changed == {path for path in after if is_adapter(path) or path.endswith("/projection/kernel")}
    texts, mesh = ["where is the cat", "a mat"], mesh_of(1)
    expected = found.text_encoder(mesh)(params["dual_encoder"], "question", texts)
    for embedded, own in zip(endx_jax.load(tmp_path).encode_query(texts), expected, strict=True):
        np.testing.assert_allclose(embedded, own, atol=2e-6)


def test_the_index_of_a_run_is_searched_by_tokens(workdir, capsys):
    model, asked = endx_jax.load(workdir), "where is the cat"
    search.main([f"--workdir={workdir}", "--mode=dense", "--top=1", "--format=jsonl", asked])
    best = json.loads(capsys.readouterr().out)
    (question,) = model.encode_query([asked])
    (score,) = model.similarity([question], model.encode_document([best["answers"][0]["text"]]))[0]
    np.testing.assert_allclose(best["answers"][0]["score"], score / len(question), atol=8e-3)


def test_what_needs_one_vector_for_each_text_is_refused(workdir, config, tmp_path):
    arguments = [f"--index={workdir}/index.sqlite", f"--data={config.data.path}", f"--output={tmp_path}/new"]
    check_refusal(lambda: mine.main(arguments), "an embedding for each token", "mining needs one vector for each text")
    check_refusal(lambda: evaluate.main(arguments), "an embedding for each token", "evaluation of an index needs one")


@pytest.mark.parametrize("embeddings", [False, True])
def test_a_run_scores_pairs_by_maxsim(workdir, embeddings):
    model, questions, texts = endx_jax.load(workdir), ["cat dog", "who"], ["the cat", "a dog is here"]
    score = load_pair_scorer(workdir, embeddings=embeddings)(questions, texts)
    expected = model.similarity(model.encode_query(questions), model.encode_document(texts))
    pairs = np.argwhere(np.ones((2, 2)))
    np.testing.assert_allclose(score(pairs), expected.ravel(), rtol=1e-5)


def test_method_and_pooling_belong_together(config, tmp_path):
    config = config.copy_and_resolve_references()
    config.model.pooling = "mean"
    check_refusal(lambda: run(config, tmp_path), "objective.name=late", "model.pooling")
    config.objective, config.model.pooling = {"name": "dual"}, "tokens"
    check_refusal(lambda: run(config, tmp_path), "objective.name=dual", "model.pooling")
