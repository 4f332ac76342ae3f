"""Arguments that do not fit are refused by every loss in one sentence, eagerly and under `jax.jit`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import one_line_error, refused

from endx_jax import losses
from endx_jax.batch import TokenVectors
from endx_jax.losses import Guide, Prefixes

DRAWN = jnp.zeros((8, 2), jnp.int32)
WEIGHTS = {"a|q": 1.0}


def aligned(question, answer, **settings):
    return losses.geometry_alignment((question, answer), (question, answer), weights=WEIGHTS, **settings)


def regression(question, answer, **settings):
    return losses.embedding_regression((question, answer), (question, answer), **settings)


# Losses of question and answer embeddings [8, 16].
OF_PAIRS = {
    "in_batch_softmax": losses.in_batch_softmax,
    "triplet": losses.triplet,
    "quadratic_regression_conditional": losses.quadratic_regression_conditional,
    "sampled_matching": functools.partial(losses.sampled_matching, drawn=DRAWN),
    "geometry_alignment": aligned,
    "embedding_regression": regression,
}


@pytest.mark.parametrize("loss", OF_PAIRS.values(), ids=OF_PAIRS)
def test_shapes_that_do_not_agree_are_refused(loss):
    with one_line_error(r"answer has shape \(4, 16\); it must be \[B, E\], with B = 8 as in (dual )?question"):
        loss(jnp.zeros((8, 16)), jnp.zeros((4, 16)))
    with one_line_error(r"answer has shape \(8, 12\); it must be \[B, E\], with .* E = 16 as in (dual )?question"):
        jax.jit(loss)(jnp.zeros((8, 16)), jnp.zeros((8, 12)))
    refused(r"question has shape \(16,\); it must be \[B, E\]", loss, jnp.zeros(16), jnp.zeros(16))


@pytest.mark.parametrize("loss", OF_PAIRS.values(), ids=OF_PAIRS)
def test_other_arguments_of_a_batch_are_checked(loss):
    pair = jnp.zeros((8, 16)), jnp.zeros((8, 16))
    with one_line_error(r"where has shape \(4,\); it must be bool \[B\], with B = 8 as in (dual )?question"):
        loss(*pair, where=jnp.ones(4, bool))
    refused(r"where has dtype float32; it must be bool \[B\]", loss, *pair, where=jnp.ones(8))
    with one_line_error(r"question is of type list; it must be a NumPy or JAX array of shape \[B, E\]"):
        loss([[0.0]], jnp.zeros((1, 1)))


@pytest.mark.parametrize("name", ["in_batch_softmax", "triplet", "sampled_matching"])
def test_ids_are_checked(name):
    pair = jnp.zeros((8, 16)), jnp.zeros((8, 16))
    with one_line_error(r"answer_id has shape \(8, 1\); it must be integer \[B\], with B = 8 as in question"):
        OF_PAIRS[name](*pair, answer_id=jnp.zeros((8, 1), jnp.int32))
    refused(r"question_id has dtype float32; it must be integer \[B\]", OF_PAIRS[name], *pair, question_id=jnp.zeros(8))


def test_embeddings_of_tokens_have_masks():
    tokens = TokenVectors(jnp.zeros((2, 3, 4)), jnp.ones((2, 3), bool))
    refused(
        r"mask of answer has shape \(2, 3, 4\); it must be bool \[B, A\]",
        losses.in_batch_softmax,
        tokens,
        tokens.values,
    )


@pytest.mark.parametrize("wrong", [0, -0.5, float("nan"), np.float32(0), jnp.float32(-1)], ids=repr)
def test_a_temperature_that_is_not_positive_is_refused(wrong):
    pair = jnp.zeros((8, 16)), jnp.zeros((8, 16))
    with one_line_error(r"temperature is (0|-0.5|nan|0.0|-1.0); it must be greater than 0"):
        losses.in_batch_softmax(*pair, temperature=wrong)
    refused("temperature of the cross space is .*; it must be greater than 0", aligned, *pair, temperature=(1.0, wrong))


def test_a_traced_temperature_passes():
    pair = jnp.eye(8, 16), jnp.eye(8, 16)
    # Between each right score and the 7 others there is a margin of 1 / temperature.
    found = jax.jit(lambda temperature: losses.in_batch_softmax(*pair, temperature=temperature))(0.5)[0]
    assert float(found) == pytest.approx(np.log(1 + 7 * np.exp(-1 / 0.5)), rel=1e-6)


def test_arguments_of_one_loss_alone_are_checked():
    with one_line_error("temperature is 0.5; it must be a pair, of the dual and of the cross space"):
        aligned(jnp.zeros((8, 16)), jnp.zeros((8, 16)), temperature=0.5)
    with one_line_error("dual is of type .*; it must be a pair of question and answer embeddings"):
        losses.geometry_alignment(jnp.zeros((8, 16)), (jnp.zeros((8, 16)),) * 2, weights=WEIGHTS)
    with one_line_error("kind is 'msee', which is none of mse, bce; did you mean 'mse'"):
        losses.sampled_matching(jnp.zeros((8, 16)), jnp.zeros((8, 16)), DRAWN, kind="msee")
    with one_line_error(r"mean has shape \(8, 16\) and log_deviation \(8, 12\); both must be the same"):
        losses.gaussian_kl(jnp.zeros((8, 16)), jnp.zeros((8, 12)))
    refused(r"kl has shape \(16,\); it must be \[B, E\]", losses.free_bits, jnp.zeros(16), 2.0)
    with one_line_error(r"kernel has shape \(30, 5\); it must be \[V, W\], with W = 4 as in hidden"):
        ids = jnp.zeros((8, 1), jnp.int32)
        losses.vocabulary_nll(jnp.zeros((8, 4)), jnp.zeros((30, 5)), jnp.zeros(30), ids, jnp.ones((8, 1)))
    with one_line_error(r"answer_id has shape \(4,\); it must be integer \[B\], with B = 8 as in question_id"):
        losses.false_negative_mask(question_id=jnp.zeros(8, jnp.int32), answer_id=jnp.zeros(4, jnp.int32))


@pytest.mark.parametrize("loss", [losses.pair_softmax, losses.pair_binary])
def test_scored_pairs_need_a_wrong_answer(loss):
    refused(r"scores has shape \(8, 1\); each row needs a right and at least one wrong answer", loss, jnp.zeros((8, 1)))
    with one_line_error(r"where has shape \(8, 2\); it must be bool \[B, N\], with .* N = 3 as in scores"):
        loss(jnp.zeros((8, 3)), where=jnp.ones((8, 2), bool))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"prefixes": Prefixes((2, 7))}, "the longest prefix has width 7; the embeddings have 6"),
        ({"same_side": ("both",)}, "same_side is 'both', which is none of questions, answers"),
        ({"guide": Guide(np.ones((2, 3)), np.ones((2, 4)))}, r"guide.answer has shape \(2, 4\)"),
        ({"guide": Guide(*np.ones((2, 2, 3))), "hard_negatives": np.ones((2, 1, 6))}, "guide has no hard_negatives"),
        ({"log_q": np.ones(3)}, r"log_q has shape \(3,\)"),
    ],
)
def test_options_that_do_not_fit_are_refused(given, message):
    def loss(**given):
        rest = {name: given.pop(name) for name in ("hard_negatives",) if name in given}
        losses.in_batch_softmax(jnp.zeros((2, 6)), jnp.zeros((2, 6)), options=losses.Options(**given), **rest)

    refused(message, loss, **given)


@pytest.mark.parametrize("widths", [(), (3, 2), (2, 2), (0, 2)])
def test_widths_of_prefixes_are_ascending(widths):
    refused("widths of prefixes are .*; they must be positive and ascending", Prefixes, widths)
    refused("there are 1 weights of prefixes for 2 widths", Prefixes, (1, 2), (1.0,))
