import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
from helpers import padded, random_params, texts, tower

from endx_jax.encoders.bert import BertConfig
from endx_jax.parallel import MeshSettings, make_mesh, place, state_shardings
from endx_jax.parallel.sharding import parameter_paths
from endx_jax.training.checkpoints import Checkpoints, abstract
from endx_jax.training.optimizer import OptimizerSettings, make_optimizer, make_schedule
from endx_jax.training.step import TrainState

STEPS = 5
SETTINGS = OptimizerSettings(name="adafactor", learning_rate=0.1, warmup_steps=2, weight_decay=0.0, clip_norm=0.0)
THEIRS = optax.adafactor(make_schedule(SETTINGS, STEPS))
SHAPES = {
    "wide": {"kernel": (128, 160), "bias": (160,)},
    "tall": {"kernel": (160, 128), "bias": (128,)},
    "narrow": {"kernel": (127, 160)},
    "scalar": (),
}


def drawn(shapes, seed, scale=1.0):
    draw = np.random.default_rng(seed)
    leaves, structure = jax.tree.flatten(shapes, is_leaf=lambda x: isinstance(x, tuple))
    return jax.tree.unflatten(structure, [scale * draw.normal(size=s).astype(np.float32) for s in leaves])


def gradients_of(params):
    """One tree a step; they grow, so that updates are clipped."""
    return [drawn(jax.tree.map(np.shape, params), seed=1 + t, scale=0.01 * 3.0**t) for t in range(STEPS)]


def trained(optimizer, params, gradients):
    @jax.jit
    def step(params, state, gradient):
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    state = jax.jit(optimizer.init)(params)
    for gradient in gradients:
        params, state = step(params, state, gradient)
    return params


def encoder(depth, seed):
    """Layers of quite different sizes, in the order 0, 1, ..., under the names that BERT's have."""
    shapes = {"mlp_up": {"kernel": (128, 160), "bias": (160,)}, "norm": {"scale": (128,)}}
    layers = {f"layers_{n}": drawn(shapes, seed + n, scale=0.1 * 4.0**n) for n in range(depth)}
    return layers | {"position_embedding": drawn((140, 128), seed)}


def two_towers():
    """Two towers, of two and of three layers."""
    sides = {"question": {"encoder": encoder(2, 10)}, "answer": {"encoder": encoder(3, 20)}}
    return {"dual_encoder": sides, "log_temperature": np.float32(0.5)}


def test_it_is_optax_adafactor():
    params = drawn(SHAPES, seed=0) | {"zero": np.zeros(7, np.float32)}  # a size below the smallest scale
    gradients = gradients_of(params)
    found = trained(make_optimizer(SETTINGS, STEPS, params), params, gradients)
    chex.assert_trees_all_close(found, trained(THEIRS, params, gradients), rtol=1e-5, atol=1e-7)


def test_the_moments_are_kept_by_row_and_column_where_both_sides_are_wide():
    params = drawn(SHAPES, seed=0)
    state = make_optimizer(SETTINGS, STEPS, params).init(params)
    shapes = {path: np.shape(leaf) for path, leaf in parameter_paths(state).items()}
    assert [shapes[f"0/{v}/wide/kernel"] for v in ("v_row", "v_col", "v")] == [(128,), (160,), (1,)]
    assert [shapes[f"0/{v}/narrow/kernel"] for v in ("v_row", "v_col", "v")] == [(1,), (1,), (127, 160)]


def test_frozen_leaves_are_absent():
    def freeze(params):
        return jax.tree_util.tree_map_with_path(lambda path, leaf: None if "question" in str(path) else leaf, params)

    params = two_towers()
    gradients = gradients_of(params)
    whole = trained(make_optimizer(SETTINGS, STEPS, params), params, gradients)
    part = freeze(params)
    optimizer = make_optimizer(SETTINGS, STEPS, part)
    assert not [path for path in parameter_paths(optimizer.init(part)) if "question" in path]
    chex.assert_trees_all_equal(trained(optimizer, part, [freeze(g) for g in gradients]), freeze(whole))


def test_its_state_comes_back_from_a_checkpoint_on_another_mesh(tmp_path):
    params = encoder(2, seed=0)
    trained_part = params | {"position_embedding": None}
    optimizer = make_optimizer(SETTINGS, STEPS, trained_part)
    _, opt_state = jax.jit(lambda part: optimizer.update(part, optimizer.init(part), part))(trained_part)
    state = jax.tree.map(jnp.asarray, TrainState(step=jnp.int32(1), params=params, opt_state=opt_state))
    checkpoints = Checkpoints(tmp_path, keep=1, metric="mrr", report=lambda line: None)
    checkpoints.save(1, state)
    checkpoints.wait()
    restored = checkpoints.restore(1, abstract(state, state_shardings(state, make_mesh(MeshSettings(fsdp=2)))))
    checkpoints.close()
    chex.assert_trees_all_equal(restored, state)


def test_a_sharded_update_is_the_whole_one():
    config = BertConfig(vocab_size=300, width=128, layers=1, heads=2, mlp_width=256, positions=32)
    bert = tower(config)
    params = {"dual_encoder": {"shared": random_params(bert, padded(texts((8, 5)), 8))}}
    gradients = drawn(jax.tree.map(np.shape, params), seed=1)
    optimizer = make_optimizer(SETTINGS, STEPS, params)

    @jax.jit
    def step(params, gradients):
        return optimizer.update(gradients, optimizer.init(params), params)

    mesh = make_mesh(MeshSettings(fsdp=2, tensor=2))
    at = state_shardings(jax.eval_shape(step, params, gradients), mesh)
    split = [place(tree, at[0]) for tree in (params, gradients)]
    updates, state = jax.jit(step, out_shardings=at)(*split)
    chex.assert_trees_all_close((updates, state), step(params, gradients), rtol=1e-5, atol=1e-8)
    parts = {path: leaf.sharding.shard_shape(leaf.shape) for path, leaf in parameter_paths(state).items()}
    layer = "dual_encoder/shared/encoder/layers_0"
    assert parts[f"0/v_row/{layer}/mlp_up/kernel"] == (128,)
    assert parts[f"0/v_col/{layer}/mlp_up/kernel"] == (256,)
    assert parts[f"0/v/{layer}/mlp_up/kernel"] == (1,)
    assert parts[f"0/v/{layer}/mlp_up/bias"] == (256 // 2,)
    assert parts["0/v/dual_encoder/shared/encoder/position_embedding"] == (32, 128 // 2)
