"""The map over rows: its work and memory, and the precision of the products of every loss; twins: see each loss."""

import functools

import jax
import jax.numpy as jnp
import pytest
from helpers import split_over
from jaxprs import equations, largest_array

from endx_jax import losses
from endx_jax.batch import TokenVectors
from endx_jax.losses.geometry import KERNELS, TERMS
from endx_jax.planning.programs import collectives

ROWS, WIDTH, TILE = 512, 32, 64  # on each device


def test_no_columns_have_no_gradient():
    value, gradient = jax.jit(jax.value_and_grad(losses.log_sum_exp))(jnp.ones(3), jnp.zeros(3, bool))
    assert value == -jnp.inf
    assert not gradient.any()


def test_a_constant_teacher_has_no_gradient_computed():
    def products(constant: bool) -> int:
        def compute(dual, cross):
            settings = {"weights": {"a|q": 1.0}, "stop_gradient": constant}
            return losses.geometry_alignment(dual, cross, tile=4, **settings)[0]

        pair = jnp.ones((8, 2)), jnp.ones((8, 2))
        jaxpr = jax.make_jaxpr(jax.jit(jax.grad(compute, (0, 1))))(pair, pair)
        return len([x for x in equations(jaxpr) if x.primitive.name == "dot_general" and x.outvars[0].aval.size])

    # Two scores, and the gradients of rows and of columns. No score is computed again for the gradient.
    assert products(constant=False) == 2 + 2 * 2
    assert products(constant=True) == 2 + 2


def softmax(dual, _, **cut):
    return losses.in_batch_softmax(*dual, direction="sum", temperature=0.1, **cut)[0]


def alignment(dual, cross, **cut):
    return losses.geometry_alignment(dual, cross, weights=dict.fromkeys(TERMS, 1.0), **cut)[0]


@pytest.mark.parametrize("loss", [softmax, alignment])
def test_split_over_devices_no_collective_is_in_a_loop_and_no_array_has_all_scores(loss):
    cut = split_over(8, functools.partial(loss, tile=TILE, axis_name="data"))
    like = jax.ShapeDtypeStruct((8 * ROWS, WIDTH), jnp.float32)
    program = jax.jit(jax.value_and_grad(cut)).lower((like, like), (like, like)).compile()
    found = collectives(program.as_text())
    assert {collective.kind for collective in found} >= {"all-gather", "reduce-scatter"}
    assert {(collective.loops, collective.times) for collective in found} == {(0, 1)}
    scores = ROWS * 8 * ROWS * 4
    assert program.memory_analysis().temp_size_in_bytes < 2 * scores


def with_hard_negatives(question, answer, tile):
    hard, ids = jnp.stack([question, answer], axis=1), {"answer_id": jnp.arange(len(answer))}
    return losses.in_batch_softmax(question, answer, hard_negatives=hard, direction="sum", tile=tile, **ids)[0]


def triplets(question, answer, tile):
    return losses.triplet(question, answer, answer_id=jnp.arange(len(answer)), direction="sum", tile=tile)[0]


def of_words(hidden, answer, tile):
    kernel, weights = jnp.tile(answer, (5, 1)), jnp.ones((len(hidden), 1))
    given = hidden, kernel, kernel[:, 0], jnp.zeros(weights.shape, jnp.int32), weights
    return losses.vocabulary_nll(*given, tile=tile or len(hidden))[0]


# Entries of a row of scores: of two hard negatives for each question, of answers, and of five times as many words.
@pytest.mark.parametrize(("loss", "of_a_row"), [(with_hard_negatives, 2), (triplets, 1), (of_words, 5)])
def test_no_array_is_as_large_as_all_scores(loss, of_a_row):
    size, tile = 128, 16
    given = (jax.ShapeDtypeStruct((size, 4), jnp.float32),) * 2
    for cut, rows in ((tile, tile), (None, size)):
        computed = jax.make_jaxpr(jax.value_and_grad(functools.partial(loss, tile=cut), (0, 1)))(*given)
        assert largest_array(computed) == rows * size * of_a_row


PAIR = jnp.ones((4, 6)), jnp.ones((4, 6))
TOKENS = [TokenVectors(jnp.ones((4, length, 6)), jnp.ones((4, length), bool)) for length in (3, 2)]
HARD = jnp.ones((4, 2, 6))
EVERY = losses.Options(losses.Prefixes((2, 6)), ("questions", "answers"), losses.Ceiling(), losses.Guide(*PAIR, HARD))
WORDS = jnp.zeros((4, 2), jnp.int32), jnp.ones((4, 2))
# Every loss with matrix products, as functions of their embeddings.
PRODUCTS = {
    "softmax": lambda x: losses.in_batch_softmax(*x, hard_negatives=HARD, direction="sum", options=EVERY)[0],
    "sigmoid": lambda x: losses.in_batch_sigmoid(*x, hard_negatives=HARD, options=EVERY)[0],
    "triplet": lambda x: losses.triplet(*x, direction="sum")[0],
    "matching": lambda x: losses.sampled_matching(*x, drawn=WORDS[0])[0],
    "vocabulary": lambda x: losses.vocabulary_nll(*x, jnp.zeros(4), *WORDS)[0],
    **{
        kernel: lambda x, kernel=kernel: losses.geometry_alignment(x, x, weights={"a|q": 1.0}, kernel=kernel)[0]
        for kernel in KERNELS
    },
}


def dot_precisions(function, embeddings) -> set:
    """Returns the precisions of all matrix products of a loss and its gradient."""
    jaxpr = jax.make_jaxpr(jax.value_and_grad(function))(embeddings)
    return {x.params["precision"] for x in equations(jaxpr) if x.primitive.name == "dot_general"}


HIGHEST = (jax.lax.Precision.HIGHEST, jax.lax.Precision.HIGHEST)


@pytest.mark.parametrize("loss", PRODUCTS.values(), ids=PRODUCTS)
def test_every_product_states_the_highest_precision(loss):
    """Accelerators round the factors of other products to bfloat16, which no value on a CPU shows."""
    assert dot_precisions(loss, PAIR) == {HIGHEST}


def test_products_of_tokens_state_the_highest_precision():
    def loss(values):
        tokens = [one.replace(values=x) for one, x in zip(TOKENS, values, strict=True)]
        return losses.in_batch_softmax(*tokens, direction="sum", tile=2)[0]

    assert dot_precisions(loss, [one.values for one in TOKENS]) == {HIGHEST}
