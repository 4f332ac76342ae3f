"""The check of decoders against the objective's own likelihood, batch by batch."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import texts
from tiny_vae import SETTINGS, VOCABULARY, build

from endx_jax.data.batches import BatchStream, Pairs
from endx_jax.data.ragged import Ragged
from endx_jax.data.token_tables import TokenTable
from endx_jax.methods.vae.report import COLLAPSED, check_decoders, collapsed
from endx_jax.models.dropout import example_keys
from endx_jax.parallel import MeshSettings, make_mesh

COUNT, SIZE = 9, 4
MESH = make_mesh(MeshSettings(), jax.devices()[:1])


def table(seed: int) -> TokenTable:
    rows = texts(3 + np.arange(COUNT) % 4, seed, VOCABULARY)
    return TokenTable.from_lengths(np.concatenate(rows), np.array([len(row) for row in rows]), pad_id=0)


@pytest.fixture(scope="module")
def pairs():
    index = np.repeat(np.arange(COUNT, dtype=np.int32)[:, None], 2, axis=1)
    right, wrong = Ragged.from_array(index[:, :1]), Ragged.from_rows([[]] * len(index))
    return Pairs(table(0), table(1), index, right, wrong, None, question_length=8, answer_length=8)


def check(objective, params, pairs):
    section = check_decoders(objective, params, pairs, MESH, batch_size=SIZE)
    return section and section.values


def test_each_collapsed_posterior_is_a_warning():
    assert collapsed({"loss": 0.0, "kl/question": COLLAPSED, "kl/answer": 30.0}) == {}
    found = collapsed({"loss": 0.0, "kl/question": 0.034, "kl/answer": 30.0})
    assert list(found) == ["kl/question"]
    assert "the posterior of each question has collapsed onto the prior: it carries 0.034 nats" in found["kl/question"]


def test_the_figures_are_those_of_the_objective(pairs):
    """Nine pairs are two batches of four; the posteriors of questions are given to the answers' decoder."""
    objective, params = build(dataclasses.replace(SETTINGS, word_share=0.5))
    found = check(objective, params, pairs)
    posteriors, nll = jax.jit(objective.posteriors), jax.jit(objective.decoders.nll, static_argnums=1)
    of_decoders = objective.decoders.parameters(params)
    stream = BatchStream(pairs, seed=0, global_batch_size=SIZE)
    expected = dict.fromkeys(("nll", "nll_shuffled", "kl", "words"), 0.0)
    for step in range(2):
        batch = jax.tree.map(jnp.asarray, stream[step])
        keys = example_keys(jax.random.key(0, impl="threefry2x32"), jnp.int32(step), SIZE)
        source = posteriors(params, batch, keys).question
        for name, latent in (("nll", source.latent), ("nll_shuffled", np.roll(source.latent, 1, axis=0))):
            expected[name] += float(nll(of_decoders, "answer", {"question": latent}, batch)) / 8
        deviation = np.exp(source.log_deviation)
        expected["kl"] += float(np.sum((source.mean**2 + deviation**2 - 1) / 2 - source.log_deviation)) / 8
        expected["words"] += float(batch.answer.mask.sum() - SIZE) / 8
    assert found["answer"].pop("pairs") == 8
    assert found["answer"] == {name: pytest.approx(value, rel=1e-4) for name, value in expected.items()}
    assert abs(found["answer"]["nll"] - found["answer"]["nll_shuffled"]) > 1e-3


def test_a_decoder_that_does_not_listen_does_as_well_with_any_latent_vector(pairs):
    objective, params = build()
    deaf = jax.tree.map(jnp.zeros_like, params["decoder"]["answer"]["hidden"])
    params["decoder"]["answer"] |= {"hidden": deaf}
    found = check(objective, params, pairs)
    np.testing.assert_allclose(found["answer"]["nll"], found["answer"]["nll_shuffled"], rtol=1e-6)
    assert abs(found["question"]["nll"] - found["question"]["nll_shuffled"]) > 1e-3
