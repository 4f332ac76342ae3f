"""The main job end to end, on a tiny tower and tiny text."""

import contextlib
import dataclasses
import io
import itertools
import json
import logging
import shutil

import chex
import jax
import numpy as np
import pytest
from helpers import flip_a_bit, logged_losses, logged_steps, times, trained_params, use_devices
from refusals import check_refusal
from small_squad import regular
from tiny_bert import tiny_recipe, write_tiny_bert

import endx_jax
from endx_jax.data.sets.documents import Document
from endx_jax.data.sources import read_splits
from endx_jax.errors import EndxError
from endx_jax.experiment import prepared_run
from endx_jax.experiment.config import resolve
from endx_jax.experiment.model import build_model
from endx_jax.experiment.run import prepare_run, run
from endx_jax.experiment.saved_model import best_params, read_model
from endx_jax.experiment.workdir import LOCK, PROFILE, read_config, run_index
from endx_jax.index.index import Index
from endx_jax.methods.dual import DualSettings
from endx_jax.methods.residual import HeadSettings, ResidualSettings
from endx_jax.models.sharing import SHARINGS
from endx_jax.parallel import MeshSettings, make_mesh
from endx_jax.parallel.console import gathering
from endx_jax.training.hooks import WARM_UP

SYSTEMS = ("bm25", "untrained", "untrained hybrid", "trained", "hybrid")


def test_the_workdir_holds_what_the_readme_promises(trained_workdir):
    workdir = trained_workdir
    assert list(logged_losses(workdir)) == [1, 2, 3, 4, 5, 6]
    written = json.loads((workdir / "results.json").read_text())
    assert list(written["systems"]) == [*SYSTEMS]
    assert 0 < written["systems"]["trained"]["mrr"] <= 1
    test = read_splits(read_config(workdir).data).test
    assert written["evaluations"][0]["questions"] == len(test.questions)
    index = Index(workdir / "index.sqlite")
    documents = [document for _, document in index.snapshot]
    pool = documents[: len(test.documents)]
    assert [(document.id, document.text) for document in pool] == [(one.id, one.text) for one in test.documents]
    asked = [(question, document.text) for document in pool for question in document.questions]
    assert {*asked} == {(test.questions[row], test.candidates[candidate]) for row, candidate in test.pairs}
    assert (index.snapshot.info.width, index.snapshot.info.metric) == (32, "cosine")
    assert index.snapshot.info.model["step"] in (2, 4, 6)
    assert index.snapshot.info.model["identity"] == endx_jax.load(workdir).identity
    rankings = workdir / "evaluation" / "test"
    assert {"qrels.trec", "trained.run.trec", "bm25.per_question.jsonl"} <= {f.name for f in rankings.iterdir()}
    assert json.loads((workdir / "config.json").read_text())["model"]["pooling"] == "mean"
    assert set(json.loads((workdir / LOCK).read_text())) == {"host", "process", "since"}
    made = json.loads((workdir / "manifest.json").read_text())
    assert made["data_sha256"] == json.loads((workdir / "data.json").read_text())["sha256"]
    assert (made["seed"], made["versions"]["jax"]) == (0, jax.__version__)
    assert made["devices"] == {"kind": "cpu", "count": 8, "processes": 1}


def test_the_numbers_of_every_step_are_those_of_its_batch(trained_workdir, config, tmp_path):
    lines, stream = logged_steps(trained_workdir), prepare_run(config, tmp_path).plan.stream
    assert len(lines) == 6
    for step, line in enumerate(lines, start=1):
        questions, answers = stream.pairs.index[stream.example_ids(step - 1)].T
        equal = sum(int(a == b) for a, b in itertools.permutations(answers, 2))
        tokens = stream.pairs.questions.lengths[questions].sum() + stream.pairs.answers.lengths[answers].sum()
        assert line["step"] == step
        assert line["learning_rate"] == pytest.approx(1e-3 * (7 - step) / 6)  # linear, from the peak to 0 after 6
        assert line["masked_fraction"] == pytest.approx(equal / (16 * 15))
        assert line["temperature"] == pytest.approx(0.05)
        assert line["tokens_per_second"] / line["pairs_per_second"] == pytest.approx(tokens / 16, rel=0.01)
    assert sum(line["masked_fraction"] for line in lines) > 0


@pytest.fixture(scope="module")
def stopped_once(tiny_bert, pairs_csv, tmp_path_factory):
    """A run that was stopped after three of its six steps, and what it printed."""
    config, shown = tiny_recipe(tiny_bert, pairs_csv, encoder="none"), io.StringIO()
    workdir = tmp_path_factory.mktemp("stopped")
    config.train.stop_at_step = 3
    with contextlib.redirect_stdout(shown):
        assert run(config, workdir) is None
    return workdir, shown.getvalue()


@pytest.fixture
def stopped(stopped_once, tmp_path):
    """A copy of the stopped run, which has checkpoints of steps 2 and 3."""
    return shutil.copytree(stopped_once[0], tmp_path / "stopped")


def test_stopped_and_resumed_is_bit_equal_to_one_go(trained_workdir, stopped_once, stopped, config, capsys):
    assert list(logged_losses(stopped)) == [1, 2, 3]
    assert "\ncompiling 1 program for the training step\n" in stopped_once[1]  # no cache: it is compiled every time
    assert "stopped at step 3 of 6" in stopped_once[1]
    run(config, stopped)
    said = capsys.readouterr().out
    assert "resuming from the checkpoint of step 3 of 6" in said
    assert "\nranking by `untrained`\nranking by `trained`\n" in said
    assert logged_losses(stopped) == logged_losses(trained_workdir)
    chex.assert_trees_all_equal(trained_params(stopped), trained_params(trained_workdir))


@pytest.fixture
def finished(trained_workdir, tmp_path):
    return shutil.copytree(trained_workdir, tmp_path / "run")


HEADS = ResidualSettings(head=HeadSettings("fcrr", "answer"))


@pytest.mark.parametrize(
    ("count", "shares", "objective"), [(9, 0.2, DualSettings()), (60, 0.0, DualSettings()), (9, 0.2, HEADS)]
)
def test_without_held_out_questions_the_last_checkpoint_is_the_model_and_all_answers_are_searched(
    config, tmp_path, capsys, count, shares, objective
):
    config.objective = dataclasses.asdict(objective)
    (tmp_path / "faq.csv").write_text("question,answer\n" + "".join(f"what is {n},a mat {n}\n" for n in range(count)))
    config.data.update(path=str(tmp_path / "faq.csv"), validation_fraction=shares, test_fraction=shares)
    config.train.global_batch_size = 8
    run(config, tmp_path / "run")
    said = capsys.readouterr().out
    assert ("with fewer than 10 questions none is held out" in said) == (count < 10)
    assert "no test questions, so nothing is ranked" in said
    assert "load use the trained model, which was not compared" in said
    assert endx_jax.load(tmp_path / "run").encode_query(["a question"]).shape == (1, 32)
    assert len(Index(run_index(tmp_path / "run"))) == count
    assert best_params(tmp_path / "run", read_model(tmp_path / "run"), make_mesh(MeshSettings()))[1] == 6
    written = json.loads((tmp_path / "run" / "results.json").read_text())
    assert written == {"systems": {}, "served": {"system": "trained", "questions": 0}, "evaluations": []}
    stored = json.loads((tmp_path / "run" / "config.json").read_text())
    del stored["model"]["tokens"]  # as a version wrote it that did not have this setting
    (tmp_path / "run" / "config.json").write_text(json.dumps(stored))
    assert run(config, tmp_path / "run") is None
    assert "trained and evaluated: nothing to do" in capsys.readouterr().out


def notes_of(config, folder, rows, **usage) -> str:
    """What a run on these rows says at its start."""
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config.data.path, config.train.global_batch_size = str(folder / "rows.jsonl"), 8
    config.model.pretrained = str(shutil.copytree(config.model.pretrained, folder / "encoder"))
    (folder / "encoder" / "config_sentence_transformers.json").write_text(json.dumps(usage))
    prepared = prepare_run(config, folder / "run")
    return "\n".join(prepared_run.notes(prepared))


def test_triplets_use_their_negatives_and_a_line_says_so(config, tmp_path):
    rows = [{"question": f"what is {n}", "answer": f"a mat {n}", "negative": f"a dog {n}"} for n in range(40)]
    shown = notes_of(config, tmp_path, rows)
    count = shown.partition("hard negatives of ")[2].partition(" questions")[0]
    assert f"the data has hard negatives of {count} questions: 1 per question in each step" in shown
    assert prepare_run(config, tmp_path / "run").plan.stream[0].hard_negatives is not None
    config.data.hard_negatives = 0
    prepared = prepare_run(config, tmp_path / "run")
    assert prepared.plan.stream[0].hard_negatives is None
    assert f"{count} questions: none is used" in "\n".join(prepared_run.notes(prepared))
    config.data.hard_negatives, config.objective.direction = -1, "answer_to_question"  # which compares none
    assert prepare_run(config, tmp_path / "run").plan.stream[0].hard_negatives is None


def test_negatives_that_a_limit_of_pairs_leaves_out_are_not_drawn(config, tmp_path):
    rows = [{"question": f"what is {n}", "answer": f"a mat {n}"} for n in range(40)]
    rows[-1]["negative"] = "a dog"
    config.data.validation_fraction = config.data.test_fraction = 0.0
    config.data.max_train_pairs = 16
    notes_of(config, tmp_path, rows)
    assert prepare_run(config, tmp_path / "run").plan.stream[0].hard_negatives is None


def test_a_cpu_that_could_gain_is_named(config, tmp_path, set_cpu):
    line = "note: this CPU multiplies bfloat16 about twice as fast: model.product_dtype=bfloat16"
    for encoder, dtype, gains in (("none", "float32", False), ("", "float32", True), ("", "bfloat16", False)):
        config.model.update(encoder=encoder, product_dtype=dtype)
        prepared = prepare_run(config, tmp_path / "run")
        for fast in (True, False):
            set_cpu("avx512_bf16" if fast else "avx512f")
            notes = [*prepared_run.notes(prepared)]
            assert notes.count(line) == (fast and gains)
            assert any("multiply in bfloat16" in note for note in notes) == (dtype == "bfloat16")


def test_texts_that_are_cut_prompts_that_are_left_out_and_both_directions_are_named(config, tmp_path):
    both = [(f"cat {n}", f"dog {n}") for n in range(10)]
    rows = [{"question": a, "answer": b} for pair in both for a, b in (pair, pair[::-1])]
    rows += [{"question": f"what is {n}", "answer": "the mat " * 20 + f"{n}"} for n in range(20)]
    config.model.update(encoder="", question_prompt="what: ")
    usage = {"prompts": {"query": "ask: ", "document": "say: "}, "truncate_dim": 8, "similarity_fn_name": "dot"}
    shown = notes_of(config, tmp_path, rows, **usage)
    assert "note: 20 questions are answers of other pairs too" in shown
    assert " answers are cut to 24 tokens (data.answer_length)" in shown
    assert "questions are cut" not in shown
    assert f"the prompt 'ask: ' of {tmp_path / 'encoder'} is not used; set model.question_prompt to use it" in shown
    assert "note: truncate_dim=8 of" in shown
    assert "by inner products" in shown
    assert "model.normalize=False" in shown
    assert "answer_prompt" not in shown
    assert "hard negatives" not in shown


def test_warnings_of_readers_are_part_of_the_summary_and_logged_before_a_failure(caplog):
    def read(count):
        with gathering() as records:
            logging.getLogger("endx_jax.data.formats").warning("skipped %d", count)
            if count > 3:
                raise EndxError("too many")
        return [record.getMessage() for record in records]

    assert read(3) == ["skipped 3"]
    check_refusal(lambda: read(4), "too many")
    assert [(record.name, record.getMessage()) for record in caplog.records[1:]] == [
        ("endx_jax.data.formats", "skipped 4"),
        ("endx_jax.data.formats", "skipped 4"),
    ]


def with_a_document(workdir):
    """Adds a document to the index of a run, as a server does for a client."""
    index = Index(workdir / "index.sqlite")
    index.add([Document("precious", "text")], np.ones((1, 32), np.float32))
    return index


def test_a_finished_run_builds_nothing_again(finished, config, capsys):
    with_a_document(finished)
    before = times(finished, "[!.]*")  # all but the lock
    assert run(config, finished) is None
    assert f"{finished} holds this run, trained and evaluated: nothing to do" in capsys.readouterr().out
    assert "precious" in Index(finished / "index.sqlite")
    assert times(finished, "[!.]*") == before


@pytest.mark.parametrize("missing", ["results.json", "model/towers.safetensors"])
def test_an_evaluation_replaces_no_index_that_was_changed(finished, config, capsys, missing):
    (finished / missing).unlink()  # so that the run is evaluated again
    documents = len(with_a_document(finished))
    results = run(config, finished)
    path, reason = finished / "index.sqlite", "was not replaced, as documents were added or deleted"
    said = capsys.readouterr().out
    assert f"note: the index was not written: {path} {reason}" in said
    assert "compiling" not in said  # no step is left
    assert len(Index(path)) == documents
    written = json.loads((finished / "results.json").read_text())
    assert written["systems"]["trained"] == results.evaluations["all"]["trained"].metrics
    assert (finished / missing).is_file()


def test_resumed_on_other_devices_the_losses_agree(trained_workdir, stopped, config, monkeypatch):
    config.train.stop_at_step = 5
    use_devices(monkeypatch, 4)
    run(config.to_dict() | {"mesh": {"fsdp": 2, "tensor": 2}}, stopped)
    expected = [*logged_losses(trained_workdir).values()][:5]
    np.testing.assert_allclose([*logged_losses(stopped).values()], expected, rtol=1e-5)


def test_a_damaged_checkpoint_is_passed_over(trained_workdir, stopped, config, capsys):
    flip_a_bit(stopped, 3)
    config.train.stop_at_step = 5
    run(config, stopped)
    output = capsys.readouterr().out
    assert "checkpoint 3 can't be used" in output
    assert "resuming from the checkpoint of step 2" in output
    expected = logged_losses(trained_workdir)
    assert logged_losses(stopped) == {step: expected[step] for step in range(1, 6)}


def test_another_evaluation_makes_a_missing_index_again(finished, config):
    (finished / "index.sqlite").unlink()
    config.evaluation.untrained = False
    assert list(run(config, finished).evaluations["all"]) == ["bm25", "trained", "hybrid"]
    assert list(json.loads((finished / "results.json").read_text())["systems"]) == ["bm25", "trained", "hybrid"]
    assert len(Index(run_index(finished))) > 0


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"optimizer.learning_rate": 2e-3, "seed": 1}, ["seed: 0 -> 1", "optimizer.learning_rate: 0.001 -> 0.002"]),
        ({"model.product_dtype": "bfloat16"}, ["model.product_dtype: 'float32' -> 'bfloat16'"]),
    ],
)
def test_settings_that_do_not_fit_are_refused(stopped, config, changes, named):
    config.update_from_flattened_dict(changes)
    check_refusal(lambda: run(config, stopped), *named)


def test_other_data_an_unwritable_workdir_and_another_architecture_are_refused(trained_workdir, stopped, config):
    data = json.loads((stopped / "data.json").read_text())
    (stopped / "data.json").write_text(json.dumps(data | {"sha256": "0" * 64}))
    check_refusal(lambda: run(config, stopped), "(other training data)", "another workdir")
    check_refusal(lambda: run(config, stopped / "data.json" / "run"), "can't be written")
    config.model.init_from = str(trained_workdir)
    config.model.pretrained = str(write_tiny_bert(stopped / "narrow", hidden_size=16))
    check_refusal(lambda: run(config, stopped / "other"), "does not have the architecture")


def test_what_is_not_set_fits_the_number_of_pairs_and_is_said(config, tmp_path, capsys):
    config.train.update(global_batch_size=0, steps=0, epochs=0.0, stop_at_step=1)
    config.optimizer.warmup_steps = -1
    run(config, tmp_path)
    line = "training: 29 pairs: 9 steps of 16, warm-up 0; set train.steps=... to change; "
    assert line in capsys.readouterr().out
    train = json.loads((tmp_path / "config.json").read_text())["train"]
    assert (train["global_batch_size"], train["steps"], train["epochs"]) == (16, 0, 5.0)
    config.train.stop_at_step = 2
    run(config, tmp_path)
    assert "resuming from the checkpoint of step 1 of 9" in capsys.readouterr().out


def test_a_run_can_start_from_another_ones_best(trained_workdir, config, tmp_path):
    config.model.init_from = str(trained_workdir)
    same = prepare_run(config, tmp_path)
    initial = same.model.initial_params()
    chex.assert_trees_all_equal(jax.device_get(initial), trained_params(trained_workdir))
    config.model.update(pooling="first", normalize=False, question_prompt="q: ")
    told = {*prepared_run.notes(prepare_run(config, tmp_path))} - {*prepared_run.notes(same)}
    assert sorted(line.split()[1] for line in told) == ["model.normalize", "model.pooling", "model.question_prompt"]


@pytest.mark.slow
@pytest.mark.parametrize("sharing", SHARINGS)
def test_every_sharing_trains_what_it_should_and_leaves_a_model_that_loads(config, tmp_path, capsys, sharing):
    config.model.sharing, config.model.encoder = sharing, ""
    config.model.projection, config.objective.learn_temperature = 8, True
    config.train.stop_at_step = 2
    run(config, tmp_path)
    shown = capsys.readouterr().out
    assert ("warning: model.sharing" in shown) == bool(SHARINGS[sharing].drawback)
    model, params = build_model(resolve(config)), trained_params(tmp_path)
    assert params["log_temperature"] != model.initial_params()["log_temperature"]
    after = params["dual_encoder"]
    before = jax.device_get(model.initial_params())["dual_encoder"]
    changed = jax.tree.map(lambda a, b: bool(np.any(a != b)), before, after)
    frozen = changed["shared"].pop("token_embedder") if sharing == "ade_fte" else {}
    assert not any(jax.tree.leaves(frozen))
    assert all(jax.tree.leaves(changed))
    table = before["shared"] if "token_embedder" in before.get("shared", {}) else before["question"]
    frozen_count = table["token_embedder"]["embedding"].size if sharing == "ade_fte" else 0
    assert f"{frozen_count:,} frozen)" in shown
    total = sum(leaf.size for leaf in jax.tree.leaves(before)) + 1  # the temperature
    assert f"parameters: {total:,} (" in shown
    loaded = endx_jax.load(tmp_path)
    same = np.allclose(loaded.encode_query("the cat"), loaded.encode_document("the cat"), atol=1e-6)
    assert same == (sharing == "sde")


@pytest.mark.slow
def test_towers_of_different_encoders_are_described_and_found_again(config, tmp_path, tmp_path_factory):
    other = write_tiny_bert(tmp_path_factory.mktemp("other") / "bert", seed=1, hidden_size=16, num_hidden_layers=1)
    config.model.sharing, config.model.encoder = "ade_spl", ""
    config.model.answer_pretrained = str(other)
    config.model.projection = 8
    check_refusal(lambda: run(config, tmp_path), "which differs between")
    config.model.sharing = "ade"
    config.train.update(stop_at_step=WARM_UP + 2, profile_steps=1)
    run(config, tmp_path)
    assert [*(tmp_path / PROFILE).rglob("*.xplane.pb")]
    model = read_model(tmp_path)
    assert [model.sources[side].config.width for side in ("question", "answer")] == [32, 16]
    assert endx_jax.load(tmp_path).encode_document("the cat").shape == (8,)


@pytest.mark.slow
def test_squad_after_reqa_with_hard_negatives_and_batches_of_articles(tiny_bert, tmp_path, capsys):
    for name, articles in (("train", regular(20)), ("dev", regular(3, first=20))):
        (tmp_path / f"{name}-v1.1.json").write_text(articles)
    config = tiny_recipe(tiny_bert, tmp_path)
    config.data.pool = "answers"
    config.data.validation_fraction = 0.0
    config.data.group_size = config.data.hard_negatives = 2
    config.train.steps = 2
    results = run(config, tmp_path / "run")
    written = json.loads((tmp_path / "run" / "results.json").read_text())
    assert [(found["pool"], found["system"]) for found in written["evaluations"]] == [
        (pool, system) for pool in ("answers", "sentences") for system in SYSTEMS
    ]
    assert [len(results.pools[pool].candidates) for pool in ("answers", "sentences")] == [6, 9]
    trained = next(found for found in written["evaluations"] if found["system"] == "trained")
    assert written["systems"]["trained"] == trained["metrics"]
    assert "pool sentences, 6 questions, 9 candidates:" in capsys.readouterr().out
    assert (tmp_path / "run" / "evaluation" / "test" / "sentences" / "trained.run.trec").is_file()
