"""Dual-VAEs and Cross-VAEs against the losses they are made of, and who learns from whom."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import largest, mesh_of, pairs_batch, random_params
from tiny_vae import LATENT, SETTINGS, build

from endx_jax.methods.vae import COLLAPSED, collapsed
from endx_jax.methods.vae.decoders import DECODERS, deviation
from endx_jax.models.dropout import example_keys
from endx_jax.numerics import l2_normalize
from endx_jax.parallel.execution import Execution

B = 8
RNG, STEP = jax.random.key(2, impl="threefry2x32"), jnp.int32(3)


@pytest.fixture(scope="module")
def batch():
    return pairs_batch(range(B), shortest=3)


def posteriors(objective, params, batch, dropout=True):
    keys = example_keys(RNG, STEP, B)
    return jax.jit(lambda: objective.posteriors(params, batch, keys, dropout=dropout))()


def bag_nll(decoder, latent, tokens):
    """-log p of all words after the first, of each text: by the network of a bag of words, written out."""
    hidden = np.maximum(latent @ decoder["hidden"]["kernel"] + decoder["hidden"]["bias"], 0)
    scores = hidden @ decoder["vocabulary_kernel"].T + decoder["vocabulary_bias"]
    logarithms = scores - np.log(np.sum(np.exp(scores), axis=1, keepdims=True))
    return -np.array([logarithms[i, ids[mask][1:]].sum() for i, (ids, mask) in enumerate(tokens)])


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.mark.parametrize(
    ("decodes", "match_on"), [("other", "sample"), pytest.param("own", "mean", marks=pytest.mark.slow)]
)
def test_the_loss_is_equation_7_of_its_parts(batch, decodes, match_on):
    weights = {"matching_weight": 3.0, "reconstruction_weight": 0.2, "kl_weight": 0.8, "free_bits": 3.0}
    settings = dataclasses.replace(SETTINGS, decodes=decodes, match_on=match_on, mean_scale=3.0, **weights)
    objective, params = build(settings)
    loss, metrics = jax.jit(objective)(params, batch, RNG, STEP)
    found = jax.tree.map(np.asarray, posteriors(objective, params, batch))

    nll, divergences = {}, {}
    for side, other in (("question", "answer"), ("answer", "question")):
        tokens, mean, deviation = getattr(batch, side), found[side].mean, np.exp(found[side].log_deviation)
        source = found[other if decodes == "other" else side]
        rows = zip(np.asarray(tokens.ids), np.asarray(tokens.mask), strict=True)
        decoder = jax.tree.map(np.asarray, params["decoder"][side])
        nll[side] = bag_nll(decoder, source.latent, rows).mean()
        kl = (mean**2 + deviation**2 - 1) / 2 - np.log(deviation)  # [8 texts, 5 dimensions]
        divergences[side] = np.maximum(kl.mean(axis=0), 3.0 / 5).sum()  # 3 nats a text are free, over 5 dimensions
        assert divergences[side] > kl.mean(axis=0).sum()
        np.testing.assert_allclose(metrics[f"nll/{side}"], nll[side], rtol=1e-5)
        np.testing.assert_allclose(metrics[f"word_nll/{side}"], nll[side] * B / tokens.mask[:, 1:].sum(), rtol=1e-5)
        np.testing.assert_allclose(metrics[f"kl/{side}"], kl.sum() / B, rtol=1e-5)
    name = {"sample": "latent", "mean": "mean"}[match_on]
    cosines = unit(getattr(found["question"], name)) @ unit(getattr(found["answer"], name)).T
    matching = np.mean(np.log(np.exp(cosines / 0.5).sum(axis=1)) - np.diag(cosines) / 0.5)
    np.testing.assert_allclose(metrics["matching_loss"], matching, rtol=1e-5)
    np.testing.assert_allclose(metrics["kl_weight"], 0.8 * 3 / 4, rtol=1e-6)
    expected = 3 * matching + 0.2 * (nll["question"] + nll["answer"]) + 0.8 * 3 / 4 * sum(divergences.values())
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


def test_the_mean_is_what_ranks(batch):
    objective, params = build(dataclasses.replace(SETTINGS, mean_scale=3.0))
    found = posteriors(objective, params, batch, dropout=False)
    for side, posterior in found.items():
        encode = jax.jit(objective.model.encode, static_argnums=1)
        embedding = encode(params["dual_encoder"], side, getattr(batch, side))
        np.testing.assert_allclose(embedding, l2_normalize(posterior.mean), atol=1e-6)
        noise = (posterior.latent - posterior.mean) / jnp.exp(posterior.log_deviation)
        assert np.abs(noise).min() > 1e-4
        assert 0.7 < np.std(noise) < 1.4


def test_the_weight_of_the_divergence_rises_linearly(batch):
    objective, params = build(dataclasses.replace(SETTINGS, kl_weight=0.5, anneal_steps=0, anneal_epochs=2.0))
    for steps_per_epoch, risen in ((2.0, (0.0, 0.25, 1.0, 1.0)), (0.0, (1.0, 1.0, 1.0, 1.0))):
        compute = objective.for_run(Execution(), steps_per_epoch)
        weight = jax.jit(lambda step, compute=compute: compute(params, batch, RNG, step)[1]["kl_weight"])
        found = [weight(jnp.int32(step)) for step in (0, 1, 4, 1000)]
        np.testing.assert_allclose(found, 0.5 * np.array(risen))


@pytest.mark.parametrize("decodes", ["other", pytest.param("own", marks=pytest.mark.slow)])
def test_parameters_that_learn_from_the_answers_words(batch, decodes):
    objective, params = build(dataclasses.replace(SETTINGS, decodes=decodes))

    def answers(params):
        found = objective.posteriors(params, batch, example_keys(RNG, STEP, B))
        latents = {side: posterior.latent for side, posterior in found.items()}
        return objective.decoders.nll(objective.decoders.parameters(params), "answer", latents, batch)

    gradients = jax.jit(jax.grad(answers))(params)
    source, idle = ("question", "answer") if decodes == "other" else ("answer", "question")
    for name in ("deviation", "dual_encoder"):
        assert largest(gradients[name][source]) > 1e-3
        assert largest(gradients[name][idle]) == 0
    assert largest(gradients["decoder"]["answer"]) > 1e-3
    assert largest(gradients["decoder"]["question"]) == 0


@pytest.mark.slow
def test_cutting_the_work_up_changes_nothing(batch):
    settings = dataclasses.replace(SETTINGS, decoder="reminded_gru", word_share=0.6, match="mse")
    objective, params = build(settings, sharing="sde")
    mesh = mesh_of(2)
    cut = dataclasses.replace(objective, execution=Execution(mesh, tower_chunk=3, loss_tile=3))
    computed = (jax.jit(jax.value_and_grad(each, has_aux=True))(params, batch, RNG, STEP) for each in (objective, cut))
    expected, found = computed
    chex.assert_trees_all_close(found[0], expected[0], rtol=2e-5)
    chex.assert_trees_all_close(found[1], expected[1], atol=1e-5 * largest(expected[1]))


@pytest.mark.slow
def test_a_share_of_the_words_stands_for_all(batch):
    objective, params = build(dataclasses.replace(SETTINGS, word_share=1 / 3))
    decoders, of_decoders = objective.decoders, objective.decoders.parameters(params)
    latents = {side: jnp.ones((B, LATENT)) for side in ("question", "answer")}
    tokens = {"question": batch.question, "answer": batch.answer}

    def decode(step):
        rows = latents, tokens, example_keys(RNG, step, B)
        return decoders.trained_nll(of_decoders, rows, jnp.ones(B, bool))[0]

    each = jax.jit(lambda: jax.lax.map(decode, jnp.arange(200)))()
    exact = sum(decoders.nll(of_decoders, side, latents, batch) for side in tokens)
    assert np.std(each) > 0.05 * exact
    np.testing.assert_allclose(np.mean(each), exact, rtol=4 * np.std(each) / np.sqrt(200) / exact)


def test_each_collapsed_posterior_is_a_warning():
    assert collapsed({"loss": 0.0, "kl/question": COLLAPSED, "kl/answer": 30.0}) == {}
    found = collapsed({"loss": 0.0, "kl/question": 0.034, "kl/answer": 30.0})
    assert list(found) == ["kl/question"]
    assert "the posterior of each question has collapsed onto the prior: it carries 0.034 nats" in found["kl/question"]


# Decoders: what their states depend on.
ROWS, L, D, E, V, W = 3, 5, 4, 6, 9, 8
DRAW = np.random.default_rng(0)
LATENTS = DRAW.normal(size=(ROWS, E)).astype(np.float32)
EMBEDDED = DRAW.normal(size=(ROWS, L, D)).astype(np.float32)
MASK = np.arange(L) < np.array([5, 3, 1])[:, None]


@pytest.fixture(scope="module", params=DECODERS)
def decode(request):
    decoder = DECODERS[request.param](V, W)
    params = random_params(decoder, LATENTS, EMBEDDED, MASK)
    assert params["vocabulary_kernel"].shape == (V, W)
    assert params["vocabulary_bias"].shape == (V,)
    run = jax.jit(lambda latent, embedded: decoder.apply({"params": params}, latent, embedded, MASK))
    return request.param, run


def test_states_depend_on_their_own_latent_vector(decode):
    name, run = decode
    states = run(LATENTS, EMBEDDED)
    assert states.shape == (ROWS, 1 if name == "bag_of_words" else L, W)
    moved = run(LATENTS + np.array([[1.0], [0.0], [0.0]], np.float32), EMBEDDED)
    assert np.abs(moved - states)[0].max(-1).min() > 1e-3
    np.testing.assert_array_equal(moved[1:], states[1:])


def test_a_gru_is_given_the_words_before_and_a_bag_none(decode):
    name, run = decode
    states, moved = run(LATENTS, EMBEDDED), run(LATENTS, EMBEDDED + (np.arange(L) == 2)[None, :, None])
    if name == "bag_of_words":
        np.testing.assert_array_equal(moved, states)
    else:
        np.testing.assert_array_equal(moved[:, :2], states[:, :2])
        assert np.abs(moved - states)[0, 2:].max(-1).min() > 1e-4


def test_deviations_begin_where_told():
    module = deviation(E, 0.25)
    variables = module.init(jax.random.key(0), jnp.zeros((1, D)))
    np.testing.assert_allclose(jnp.exp(module.apply(variables, EMBEDDED[:, 0])), 0.25, rtol=1e-6)
