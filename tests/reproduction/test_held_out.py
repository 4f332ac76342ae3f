"""Teachers and decoders on held-out pairs, and the control of ENDX's teacher, which sees another pair's text."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import TINY, drawn, padded, random_params, row_keys, texts, token_table, tower
from tiny_vae import SETTINGS, VOCABULARY, build

from endx_jax.batch import Batch
from endx_jax.data.batches.collator import BatchStream, Pairs
from endx_jax.data.batches.ragged import Ragged
from endx_jax.experiment.run import run
from endx_jax.methods.dual import DualSettings
from endx_jax.methods.endx import EndxObjective, EndxSettings
from endx_jax.methods.vae import VaeSettings
from endx_jax.models import DualEncoder, MultiHopAttention
from endx_jax.models.sharing import SHARINGS
from reproduction import __main__ as reproduction
from reproduction.held_out import FILE, check_decoders
from reproduction.shuffled import ShuffledObjective, ShuffledSettings

COUNT, SIZE = 9, 4
METHODS = {
    "endx": EndxSettings(cross_heads=2, ramp_epochs=0.0, ramp_steps=4),
    "vae": VaeSettings(decoder_width=8, anneal_epochs=0.0, anneal_steps=4, initial_deviation=0.1),
    "dual": DualSettings(),
}
B = 4
ONE = tower(dataclasses.replace(TINY, layers=1), pooling=MultiHopAttention(hops=2, width=4))
MODEL = DualEncoder(ONE, ONE, SHARINGS["sde"])


@pytest.fixture(scope="module")
def pairs():
    index = np.repeat(np.arange(COUNT, dtype=np.int32)[:, None], 2, axis=1)
    right, wrong = Ragged.from_array(index[:, :1]), Ragged.from_rows([[]] * len(index))
    tables = [token_table(*texts(3 + np.arange(COUNT) % 4, seed, VOCABULARY)) for seed in (0, 1)]
    return Pairs(*tables, index, right, wrong, None, question_length=8, answer_length=8)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_a_run_is_measured(method, tmp_path, bert_config, capsys):
    bert_config.model.encoder, bert_config.model.new_encoder.width, bert_config.model.projection = "gru", 8, 6
    bert_config.objective = dataclasses.asdict(METHODS[method])
    bert_config.evaluation.batch_size = 6
    run(bert_config, tmp_path)
    capsys.readouterr()
    assert reproduction.run(["pairs", str(tmp_path)]) == (2 if method == "dual" else 0)
    if method == "dual":
        assert "holds a run without a cross-encoder as teacher and without decoders" in capsys.readouterr().err
        return
    found = json.loads((tmp_path / FILE).read_text())
    assert f"{next(iter(found))}: " in capsys.readouterr().out
    assert all(np.isfinite([*measures.values()]).all() for measures in found.values())
    if method == "endx":
        assert set(found) == {"teacher", "student"}
        for measures in found.values():
            assert measures["pairs"] >= 6
            assert 0 <= measures["hit@1"] <= min(measures["mrr"], measures["hit@5"]) <= 1
        assert found["teacher"] != found["student"]


@pytest.fixture(scope="module")
def vae():
    return build(dataclasses.replace(SETTINGS, word_share=0.5))


def test_the_figures_are_those_of_the_objective(pairs, vae):
    objective, params = vae
    found = check_decoders(objective, params, pairs, SIZE)
    posteriors, nll = jax.jit(objective.posteriors), jax.jit(objective.decoders.nll, static_argnums=1)
    of_decoders = objective.decoders.parameters(params)
    stream = BatchStream(pairs, seed=0, global_batch_size=SIZE)
    expected = dict.fromkeys(("nll", "nll_shuffled", "kl", "words"), 0.0)
    for step in range(2):
        batch = jax.tree.map(jnp.asarray, stream[step])
        source = posteriors(params, batch, row_keys(SIZE, step))["question"]
        for name, latent in (("nll", source.latent), ("nll_shuffled", np.roll(source.latent, 1, axis=0))):
            expected[name] += float(nll(of_decoders, "answer", {"question": latent}, batch)) / 8
        deviation = np.exp(source.log_deviation)
        expected["kl"] += float(np.sum((source.mean**2 + deviation**2 - 1) / 2 - source.log_deviation)) / 8
        expected["words"] += float(batch.answer.mask.sum() - SIZE) / 8
    assert found["answer"].pop("pairs") == 8
    assert found["answer"] == {name: pytest.approx(value, rel=1e-4) for name, value in expected.items()}
    assert abs(found["answer"]["nll"] - found["answer"]["nll_shuffled"]) > 1e-3


def test_a_decoder_that_does_not_listen_does_as_well_with_any_latent_vector(pairs, vae):
    objective, params = vae[0], jax.tree.map(lambda x: x, vae[1])
    params["decoder"]["answer"]["hidden"] = jax.tree.map(jnp.zeros_like, params["decoder"]["answer"]["hidden"])
    found = check_decoders(objective, params, pairs, SIZE)
    np.testing.assert_allclose(found["answer"]["nll"], found["answer"]["nll_shuffled"], rtol=1e-6)
    assert abs(found["question"]["nll"] - found["question"]["nll_shuffled"]) > 1e-3


@pytest.mark.parametrize(
    ("objective", "reader"),
    [
        (ShuffledObjective(MODEL, ShuffledSettings(cross_heads=2)), 3),
        (EndxObjective(MODEL, EndxSettings(cross_heads=2)), 1),
    ],
    ids=["shuffled", "endx"],
)
def test_a_question_is_read_beside_another_pair_s_answer(objective, reader):
    questions, ids = padded(texts([3] * B), 3), jnp.arange(B)
    answers = texts([4] * B, seed=1)
    others = [*answers[:1], *texts([4], seed=2), *answers[2:]]
    towers = {side: random_params(ONE, questions) for side in ("question", "answer")}
    params = drawn(jax.eval_shape(objective.init, jax.random.key(1), MODEL.join(towers)))
    embed = jax.jit(objective.embed_as_teacher)
    before, after = (
        embed(params, Batch(questions, padded(rows, 4), ids, ids, ids[:, None])) for rows in (answers, others)
    )
    changed = np.abs(before.question - after.question).max(axis=1) > 1e-6
    assert list(np.flatnonzero(changed)) == [reader]
    changed = np.abs(before.answer - after.answer).max(axis=1) > 1e-6
    assert list(np.flatnonzero(changed)) == [1]
