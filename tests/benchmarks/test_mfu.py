import dataclasses

import jax
import jax.numpy as jnp
import pytest


def test_prints_a_row_for_every_model(start):
    sizes = ("--product=64", "--question_length=4", "--answer_length=8", "--batch=8", "--repeats=1")
    printed = start("mfu", "--models", "tiny", "--dtype=float32", *sizes)
    assert "| tiny |" in printed


# Softmax, norms and the look-ups are in the compiler's count and not in the formula, which is of matrix products alone.
@pytest.mark.parametrize("name", ["minilm", "t5-small"])
def test_the_formula_agrees_with_what_the_compiler_counts(script, name):
    mfu = script("mfu")
    whole, lengths = mfu.SHAPES[name], (64, 256)
    shape = dataclasses.replace(whole, config=dataclasses.replace(whole.config, layers=2))
    batch = jax.eval_shape(lambda: mfu.random_batch(shape, 8, lengths, seed=0))
    tower = shape.tower(jnp.dtype(jnp.float32))
    objective = mfu.DualObjective(mfu.DualEncoder(tower, tower), mfu.DualSettings())
    params = jax.eval_shape(lambda key: objective.init(key, objective.model.init(key)), jax.random.key(0))
    rng = jax.random.key(0, impl="threefry2x32")
    gradient = jax.jit(jax.grad(lambda p, b: objective(p, b, rng, jnp.int32(0))[0]))
    counted = gradient.lower(params, batch).cost_analysis()["flops"]
    assert mfu.flops(shape, 8, lengths) == pytest.approx(counted, rel=0.05)
