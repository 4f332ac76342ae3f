"""Arguments that no loss takes, and the words of the line, eagerly and under `jax.jit`: name, value, what it must be"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import check_refusal

from endx_jax import losses
from endx_jax.batch import TokenVectors
from endx_jax.losses import Guide, Options, Prefixes

WEIGHTS = {"a|q": 1.0}


def aligned(question, answer, **settings):
    return losses.geometry_alignment((question, answer), (question, answer), **{"weights": WEIGHTS} | settings)


def regression(question, answer, **settings):
    return losses.embedding_regression((question, answer), (question, answer), **settings)


# Losses of question and answer embeddings [8, 16].
OF_PAIRS = {
    "in_batch_softmax": losses.in_batch_softmax,
    "triplet": losses.triplet,
    "quadratic_regression_conditional": losses.quadratic_regression_conditional,
    "sampled_matching": functools.partial(losses.sampled_matching, drawn=jnp.zeros((8, 2), jnp.int32)),
    "geometry_alignment": aligned,
    "embedding_regression": regression,
}
PAIR = jnp.zeros((8, 16)), jnp.zeros((8, 16))
OF_BATCH = [
    (jnp.zeros((8, 16)), jnp.zeros((4, 16)), {}, "answer|(4, 16)|[B, E]|B = 8|question"),
    (jnp.zeros((8, 16)), jnp.zeros((8, 12)), {}, "answer|(8, 12)|[B, E]|E = 16|question"),
    (jnp.zeros(16), jnp.zeros(16), {}, "question|(16,)|[B, E]"),
    (*PAIR, {"where": jnp.ones(4, bool)}, "where|(4,)|bool [B]|B = 8|question"),
    (*PAIR, {"where": jnp.ones(8)}, "where|float32|bool [B]"),
]


@pytest.mark.parametrize("loss", OF_PAIRS.values(), ids=OF_PAIRS)
@pytest.mark.parametrize(("question", "answer", "given", "words"), OF_BATCH)
def test_every_loss_names_an_array_that_does_not_fit(loss, question, answer, given, words):
    for one in (loss, jax.jit(loss)):
        check_refusal(lambda one=one: one(question, answer, **given), *words.split("|"))


@pytest.mark.parametrize("name", ["in_batch_softmax", "triplet", "sampled_matching"])
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"answer_id": jnp.zeros((8, 1), jnp.int32)}, "answer_id|(8, 1)|integer [B]|B = 8|question"),
        ({"question_id": jnp.zeros(8)}, "question_id|float32|integer [B]"),
    ],
)
def test_ids_are_checked(name, given, words):
    check_refusal(lambda: OF_PAIRS[name](*PAIR, **given), *words.split("|"))


def ids(*shape):
    return jnp.zeros(shape, jnp.int32)


def call(name, *arrays, **given):
    return lambda: getattr(losses, name)(*arrays, **given)


def softmax(**given):
    return call("in_batch_softmax", jnp.zeros((3, 6)), jnp.zeros((3, 6)), **given)


def option(**given):
    return lambda: softmax(options=Options(**given))()


def alignment(**given):
    return lambda: aligned(*PAIR, **given)


TOKENS = TokenVectors(jnp.zeros((2, 3, 4)), jnp.ones((2, 3), bool))
ZERO = jnp.zeros
HARD, SCORES, WHERE = {"hard_negatives": ZERO((3, 2, 6))}, ZERO((8, 3)), jnp.ones((8, 2), bool)
OF_SCORES, DISTILLATIONS = ("pair_softmax", "pair_binary"), ("margin_mse", "listwise_kl")
OF_ONE = [
    *((call(name, [[0.0]], ZERO((1, 1))), "question|list|[B, E]") for name in ("in_batch_softmax", "triplet")),
    (call("in_batch_softmax", TOKENS, TOKENS.values), "mask of answer|(2, 3, 4)|bool [B, A]"),
    (softmax(hard_negative_ids=ids(3, 2)), "hard_negative_ids|hard_negatives"),
    (softmax(hard_negatives=ZERO((4, 2, 6))), "hard_negatives|(4, 2, 6)|[B, K, E]|B = 3|E = 6"),
    (softmax(hard_negatives=ZERO((3, 2, 5))), "hard_negatives|(3, 2, 5)|[B, K, E]|B = 3|E = 6"),
    (softmax(hard_negatives=ZERO((3, 6))), "hard_negatives|(3, 6)|[B, K, E]"),
    (softmax(**HARD, hard_negative_ids=ids(3, 1)), "hard_negative_ids|(3, 1)|integer [B, K]|K = 2"),
    (option(prefixes=Prefixes((2, 7))), "prefix|7|6"),
    (option(same_side=("both",)), "same_side|'both'|questions, answers"),
    (option(guide=Guide(np.ones((3, 3)), np.ones((3, 4)))), "guide.answer|(3, 4)"),
    (softmax(**HARD, options=Options(guide=Guide(*np.ones((2, 3, 3))))), "guide|hard_negatives"),
    (option(log_q=np.ones(2)), "log_q|(2,)"),
    *((lambda widths=widths: Prefixes(widths), f"{widths}|ascending") for widths in ((), (3, 2), (2, 2), (0, 2))),
    (lambda: Prefixes((1, 2), (1.0,)), "1 weights|2 widths"),
    (alignment(temperature=0.5), "temperature|0.5|pair"),
    (alignment(kernel="laplace"), "kernel|'laplace'|inner, gaussian, sne, pkt"),
    (alignment(reduction="sum"), "reduction|'sum'|batchmean, mean"),
    (alignment(weights={"dq": 1.0}), "weights|'dq'|q, q"),
    (alignment(weights={}), "weights|empty"),
    (call("geometry_alignment", PAIR[0], PAIR, weights=WEIGHTS), "dual|pair of question and answer"),
    (call("geometry_alignment", PAIR, (ZERO((2, 2)),) * 2, weights=WEIGHTS), "cross question|(2, 2)|B = 8|dual"),
    *((loss, "tile|0|greater than 0") for loss in (softmax(tile=0), alignment(tile=0), call("triplet", *PAIR, tile=0))),
    (lambda: losses.mean_over_rows(None, *jnp.ones((3, 2, 1)), 0), "tile|0|greater than 0"),
    (call("triplet", *PAIR, direction="both"), "direction|'both'"),
    (call("triplet", *PAIR, positive_ids=ids(8, 1)), "positive_ids|answer_id"),
    (call("sampled_matching", *PAIR, ids(8, 2), kind="msee"), "kind|'msee'|'mse'"),
    (call("gaussian_kl", ZERO((8, 16)), ZERO((8, 12))), "mean|(8, 16)|log_deviation|(8, 12)"),
    (call("free_bits", ZERO(16), 2.0), "kl|(16,)|[B, E]"),
    (call("vocabulary_nll", ZERO((8, 4)), ZERO((30, 5)), ZERO(30), ids(8, 1), ZERO((8, 1))), "kernel|(30, 5)|W = 4"),
    (call("false_negative_mask", question_id=ids(8), answer_id=ids(4)), "answer_id|(4,)|integer [B]|B = 8|question_id"),
    *((call(name, ZERO((8, 1))), "scores|(8, 1)|wrong answer") for name in OF_SCORES),
    *((call(name, *ZERO((2, 8, 1))), "scores|(8, 1)|wrong answer") for name in DISTILLATIONS),
    *((call(name, SCORES, where=WHERE), "where|(8, 2)|bool [B, N]|N = 3|scores") for name in OF_SCORES),
    *((call(name, SCORES, ZERO((8, 4))), "teacher|(8, 4)|[B, N]|N = 3|scores") for name in DISTILLATIONS),
]


@pytest.mark.parametrize(("loss", "words"), OF_ONE)
def test_an_argument_of_one_loss_is_named(loss, words):
    check_refusal(loss, *words.split("|"))


@pytest.mark.parametrize("wrong", [0, -0.5, float("nan"), np.float32(0), jnp.float32(-1)], ids=repr)
def test_a_temperature_that_is_not_positive_is_refused(wrong):
    check_refusal(softmax(temperature=wrong), f"temperature is {wrong};", "greater than 0")
    check_refusal(alignment(temperature=(1.0, wrong)), "temperature of the cross space", "greater than 0")
