"""The five sharings: where parameters stand, whose gradient they get, and what is refused."""

import functools

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import ONE_LAYER, T5_SHAPE, padded, random_params, texts, tower

from endx_jax.models import SIDES, DualEncoder, MultiHopAttention, Projection, TokenEmbedder, Tower
from endx_jax.models.sharing import SHARINGS
from endx_jax.models.transformer import TransformerEncoder

BERT = tower(ONE_LAYER, pooling=MultiHopAttention(3, 4), projection=5)
T5 = Tower(TokenEmbedder(50, 8), TransformerEncoder(T5_SHAPE), MultiHopAttention(3, 4), Projection(5))


class Dense(nn.Module):
    """An encoder which compiles fast."""

    @nn.compact
    def __call__(self, embedded, layout, dropout_keys=None):
        return jnp.tanh(nn.Dense(8, name="mlp_up")(embedded))


PLAIN = Tower(TokenEmbedder(50, 8), Dense(), MultiHopAttention(3, 4), Projection(5))
TOKENS = {"question": padded(texts((5, 2, 3)), 6), "answer": padded(texts((4, 6, 1), seed=1), 6)}

# The groups of these towers: none has a head.
ALL = {"token_embedder", "encoder", "pooling", "projection"}
# Which groups stand where: (shared, each side's own).
PLACES = {
    "sde": (ALL, set()),
    "ade": (set(), ALL),
    "ade_ste": ({"token_embedder"}, {"encoder", "pooling", "projection"}),
    "ade_fte": ({"token_embedder"}, {"encoder", "pooling", "projection"}),
    "ade_spl": ({"projection"}, {"token_embedder", "encoder", "pooling"}),
}


def test_there_are_five_sharings():
    assert set(SHARINGS) == set(PLACES)
    assert {name for name, sharing in SHARINGS.items() if sharing.frozen} == {"ade_fte"}
    assert {name for name, sharing in SHARINGS.items() if sharing.drawback} == {"ade", "ade_ste", "ade_fte"}


@pytest.mark.parametrize("sharing", SHARINGS)
def test_groups_stand_where_the_sharing_says(sharing):
    shared, own = PLACES[sharing]
    drawn = jax.eval_shape(DualEncoder(BERT, BERT, SHARINGS[sharing]).init, jax.random.key(0))
    expected = {name: groups for name, groups in (("shared", shared), *((side, own) for side in SIDES)) if groups}
    assert {name: set(groups) for name, groups in drawn.items()} == expected


def test_a_shared_gradient_is_the_sum_over_both_towers_and_an_own_one_is_its_towers():
    towers = {side: random_params(PLAIN, TOKENS["question"], seed=n) for n, side in enumerate(SIDES)}

    @functools.cache
    def differentiated(sharing):
        model = DualEncoder(PLAIN, PLAIN, SHARINGS[sharing])

        def loss(params):
            return sum(jnp.sum(jnp.sin(3 * model.encode(params, side, TOKENS[side]))) for side in SIDES)

        return jax.jit(jax.grad(loss))

    def gradients(sharing, towers):
        return differentiated(sharing)(DualEncoder(PLAIN, PLAIN, SHARINGS[sharing]).join(towers))

    for sharing in ("sde", "ade_ste", "ade_spl"):
        shared, own = PLACES[sharing]
        alike = towers | {"answer": towers["answer"] | {group: towers["question"][group] for group in shared}}
        apart, found = gradients("ade", alike), gradients(sharing, alike)
        for group in shared:
            both = jax.tree.map(jnp.add, apart["question"][group], apart["answer"][group])
            chex.assert_trees_all_close(found["shared"][group], both, rtol=1e-4, atol=1e-5)
            assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(apart["question"][group])) > 1e-3
        for side in SIDES:
            for group in own:
                chex.assert_trees_all_close(found[side][group], apart[side][group], rtol=1e-4, atol=1e-5)


def test_towers_that_share_nothing_may_differ_in_everything_but_the_embeddings_width():
    model = DualEncoder(BERT, T5, SHARINGS["ade"])
    params = model.join(
        {"question": random_params(BERT, TOKENS["question"]), "answer": random_params(T5, TOKENS["answer"])}
    )
    for side in SIDES:
        assert jax.eval_shape(lambda side=side: model.encode(params, side, TOKENS[side])).shape == (3, 5)
