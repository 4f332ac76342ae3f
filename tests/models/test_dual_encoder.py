import jax
import numpy as np
import pytest
from helpers import TINY, padded, random_params, texts, tower

from endx_jax.batch import Packing
from endx_jax.models import SIDES, DualEncoder, TokenEmbedder, Tower
from endx_jax.models.static import NoEncoder
from endx_jax.parallel.sharding import parameter_paths

MATRICES = {f"attention/{part}": (16, 16) for part in ("query", "key", "value", "output")}
MATRICES |= {"mlp_up": (16, 24), "mlp_down": (24, 16)}
LAYER = {f"{name}/kernel": shape for name, shape in MATRICES.items()}
LAYER |= {f"{name}/bias": shape[1:] for name, shape in MATRICES.items()}
LAYER |= {f"{norm}/{leaf}": (16,) for norm in ("attention_norm", "mlp_norm") for leaf in ("bias", "scale")}
AROUND = {
    "shared/encoder/norm/bias": (16,),
    "shared/encoder/norm/scale": (16,),
    "shared/encoder/position_embedding": (32, 16),
    "shared/encoder/type_embedding": (2, 16),
    "shared/projection/kernel": (16, 5),
    "shared/token_embedder/embedding": (50, 16),
}
SNAPSHOT = AROUND | {f"shared/encoder/layers_{i}/{name}": shape for i in range(2) for name, shape in LAYER.items()}
MODEL = Tower(TokenEmbedder(50, 16), NoEncoder())


@pytest.mark.parametrize("scan_layers", [False, True])
def test_the_parameter_tree(scan_layers):
    one = tower(TINY, projection=5, scan_layers=scan_layers)
    model = DualEncoder(one, one)
    drawn = parameter_paths(jax.eval_shape(model.init, jax.random.key(0)))
    assert {path: leaf.shape for path, leaf in drawn.items()} == SNAPSHOT
    assert {leaf.dtype for leaf in drawn.values()} == {np.dtype("float32")}


def test_init_draws_what_its_shapes_promise_and_depends_on_the_key():
    # Compiled for the one table that is looked at.
    draw = jax.jit(lambda key: DualEncoder(tower(), tower()).init(key)["shared"]["token_embedder"]["embedding"])
    one, same, other = draw(jax.random.key(0)), draw(jax.random.key(0)), draw(jax.random.key(1))
    np.testing.assert_array_equal(one, same)
    assert not np.allclose(one, other)
    assert np.std(one) == pytest.approx(TINY.initializer_range, rel=0.1)


def test_both_sides_are_the_shared_tower_and_a_side_of_its_own_takes_precedence():
    tokens = padded(texts((5, 2)), 6)
    shared, apply = random_params(MODEL, tokens), jax.jit(MODEL.apply)
    encode = jax.jit(DualEncoder(MODEL, MODEL).encode, static_argnames="side")
    alone = apply({"params": shared}, tokens)
    for side in SIDES:
        np.testing.assert_array_equal(encode({"shared": shared}, side=side, texts=tokens), alone)
    own = random_params(MODEL, tokens, seed=1)
    params = {"shared": shared, "answer": own}
    np.testing.assert_array_equal(encode(params, side="question", texts=tokens), alone)
    expected = apply({"params": own}, tokens)
    np.testing.assert_array_equal(encode(params, side="answer", texts=tokens), expected)
    assert np.abs(expected - alone).max() > 0.1


APART = ((TOWER := tower(), TOWER, {"shared": {}, "answer": {}}), (TOWER, tower(projection=5), {"shared": {}}))


@pytest.mark.parametrize(
    ("question", "answer", "params", "packing", "passes"),
    [
        (TOWER, tower(), {"shared": {}}, Packing(16, ((5, 6),)), [("question", 5)]),
        *((*towers, Packing(16, ((5, 6),)), [("question", 2), ("answer", 3)]) for towers in APART),
        (TOWER, TOWER, {"shared": {}}, None, [("question", 2), ("answer", 3)]),
    ],
)
@pytest.mark.parametrize("by_token", [False, True])
def test_equal_towers_encode_both_sides_in_one_pass(question, answer, params, packing, passes, by_token):
    sides, keys, found = [padded(texts([3, 1]), 3), padded(texts([6, 2, 4]), 6)], np.split(np.arange(5), [2]), []

    def encode(_, side, tokens, dropout_keys):
        found.append((side, len(tokens.ids)))
        assert (tokens.packing == packing) == (packing is None or len(passes) == 1)
        return tokens.ids[..., None] + dropout_keys[:, None, None] if by_token else tokens.lengths + dropout_keys

    inputs = [*zip(SIDES, sides, keys, strict=True)]
    results = DualEncoder(question, answer).of_sides(encode, params, inputs, packing)
    assert found == passes
    for side, of_side, result in zip(sides, keys, results, strict=True):
        expected = side.ids[..., None] + of_side[:, None, None] if by_token else side.lengths + of_side
        np.testing.assert_array_equal(result, expected)
