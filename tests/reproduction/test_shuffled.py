"""The control of ENDX's teacher, which embeds a text without seeing the text that belongs to it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import TINY, padded, random_params, texts, tower

from endx_jax.batch import Batch
from endx_jax.methods.config import load_recipe
from endx_jax.methods.endx import EndxObjective, EndxSettings
from endx_jax.models import DualEncoder, MultiHopAttention
from endx_jax.models.sharing import SHARINGS
from reproduction.shuffled import ShuffledObjective, ShuffledSettings, get_config

B = 4
ONE = tower(dataclasses.replace(TINY, layers=1), pooling=MultiHopAttention(hops=2, width=4))
MODEL = DualEncoder(ONE, ONE, SHARINGS["sde"])


@pytest.mark.parametrize(
    ("objective", "reader"),
    [
        (ShuffledObjective(MODEL, ShuffledSettings(cross_heads=2)), 3),
        (EndxObjective(MODEL, EndxSettings(cross_heads=2)), 1),
    ],
    ids=["shuffled", "endx"],
)
def test_a_question_is_read_beside_another_pair_s_answer(objective, reader):
    """Replaces the answer of pair 1: only the question that is read beside it has another embedding."""
    questions, ids = padded(texts([3] * B), 3), jnp.arange(B)
    answers = texts([4] * B, seed=1)
    others = [*answers[:1], *texts([4], seed=2), *answers[2:]]
    towers = {side: random_params(ONE, questions) for side in ("question", "answer")}
    params = jax.jit(objective.init)(jax.random.key(1), MODEL.join(towers))
    embed = jax.jit(objective.embed_as_teacher)
    before, after = (
        embed(params, Batch(questions, padded(rows, 4), ids, ids, ids[:, None])) for rows in (answers, others)
    )
    changed = np.abs(before.question - after.question).max(axis=1) > 1e-6
    assert list(np.flatnonzero(changed)) == [reader]
    changed = np.abs(before.answer - after.answer).max(axis=1) > 1e-6
    assert list(np.flatnonzero(changed)) == [1]


def test_the_recipe_is_that_of_the_paper_s_teacher_but_for_the_method():
    config = get_config().to_dict()
    assert config["objective"].pop("name") == "endx_shuffled"
    expected = load_recipe("gru_squad").get_config("endx_cross").to_dict()
    assert expected["objective"].pop("name") == "endx"
    assert config == expected
