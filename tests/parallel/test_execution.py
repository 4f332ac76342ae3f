import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import TINY, mesh_of, padded, row_keys, texts
from jaxprs import largest_array

from endx_jax.batch import Tokens
from endx_jax.models.dropout import dropout, position_keys
from endx_jax.parallel import MeshSettings, batch_sharding, make_mesh, state_shardings
from endx_jax.parallel.execution import Execution
from endx_jax.parallel.memory import bytes_kept
from endx_jax.parallel.sharding import BATCH_AXES
from endx_jax.planning.programs import collectives

# On 1, 4 and 8 shards of the batch no chunk of CHUNK divides what a device has: 40, 10 and 5 rows.
ROWS, LENGTH, CHUNK = 40, 8, 3
WIDTH = 16


def tokens(rows=ROWS, length=LENGTH):
    return padded(texts([1 + i % length for i in range(rows)]), length)


def small_params(width=WIDTH):
    draw = np.random.default_rng(0)
    table = draw.normal(size=(TINY.vocab_size, width)).astype(np.float32)
    return {
        "token_embedder": {"embedding": table},
        "mlp_up": {"kernel": draw.normal(0, 0.3, (width, width)).astype(np.float32)},
    }


def embed(params, rows):
    """A tower that compiles fast."""
    tokens, keys = rows
    x = dropout(params["token_embedder"]["embedding"][tokens.ids], position_keys(keys, tokens.ids.shape[1]), 0.3)
    x = jnp.tanh(x @ params["mlp_up"]["kernel"])
    return {"embedding": jnp.mean(x, axis=1, where=tokens.mask[..., None]), "nothing": None}


def loss_of(embedding, axis_name):
    """A loss that brings all rows together, and a metric."""
    everyone = embedding if axis_name is None else jax.lax.all_gather(embedding, axis_name, tiled=True)
    scores = 4 * embedding @ jnp.roll(everyone, 1, axis=0).T
    total = jnp.sum(jax.nn.logsumexp(scores, axis=1))
    count = embedding.shape[0]
    if axis_name is not None:
        total, count = jax.lax.psum((total, count), axis_name)
    return total / count, {"rows": jnp.float32(count)}


def length_of(rows):
    tokens, _ = rows
    return jnp.sum(tokens.mask, axis=1)


def step(execution, cost=None):
    """Loss, metrics and gradients, as a train step computes them."""

    def compute(params, rows):
        embedding = execution.map_rows(embed, params, rows, cost)["embedding"]
        return execution.reduce_rows(lambda _, rows, axes: loss_of(rows, axes), None, embedding)

    return jax.jit(jax.value_and_grad(compute, has_aux=True))


def compiled_on(mesh, execution, params, cost=None):
    """The step's program for parameters and rows that are split as in training, and these."""
    params = jax.device_put(params, state_shardings(params, mesh))
    rows = jax.device_put((tokens(), row_keys(ROWS)), batch_sharding(mesh))
    return step(execution, cost).lower(params, rows).compile(), params, rows


def assert_same(actual, expected):
    (loss, metrics), gradients = actual
    (expected_loss, expected_metrics), expected_gradients = expected
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
    assert metrics == expected_metrics == {"rows": ROWS}
    flat = jax.tree_util.tree_leaves_with_path(expected_gradients)
    largest = max(np.abs(leaf).max() for _, leaf in flat)
    for (path, leaf), gradient in zip(flat, jax.tree.leaves(gradients), strict=True):
        np.testing.assert_allclose(gradient, leaf, atol=1e-5 * largest, rtol=0, err_msg=jax.tree_util.keystr(path))


@pytest.fixture(scope="module")
def small():
    """Parameters of a small tower with dropout, and its step on all rows at once."""
    params = small_params()
    return params, step(Execution())(params, (tokens(), row_keys(ROWS)))


@pytest.mark.parametrize(("chunk", "cost"), [(39, None), (CHUNK, length_of)])
def test_chunks_change_no_loss_and_no_gradient(small, chunk, cost):
    params, expected = small
    assert_same(step(Execution(tower_chunk=chunk), cost=cost)(params, (tokens(), row_keys(ROWS))), expected)


def test_rows_come_back_in_their_order_however_they_were_dealt():
    for rows, chunk in ((12, 4), (11, 4)):
        lengths = jnp.asarray(np.random.default_rng(rows).integers(1, 5, rows))
        execution, names = Execution(tower_chunk=chunk), jnp.arange(rows)
        found = jax.jit(lambda x, e=execution, cost=lengths.__getitem__: e.map_rows(lambda _, x: x, (), x, cost))(names)
        np.testing.assert_array_equal(found, names)


def bytes_of(tree):
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


def test_gradients_are_reduced_once_and_nothing_is_in_a_loop(small):
    params, expected = small
    mesh = make_mesh(MeshSettings(fsdp=2))
    execution = Execution(mesh, tower_chunk=CHUNK, loss_tile=8)
    program, placed, rows = compiled_on(mesh, execution, params, cost=length_of)
    assert_same(program(placed, rows), expected)
    found = collectives(program.as_text())
    assert {(collective.times, collective.loops) for collective in found} == {(1, 0)}
    reduced = [collective.bytes for collective in found if collective.kind == "all-reduce"]
    assert sum(reduced) == bytes_of(params) + bytes_of((np.float32(), np.int32()))  # The loss and its count.
    assert max(reduced) >= bytes_of(params)  # One for the gradients of all leaves together.
    # The loss's own: all embeddings come, and their gradients go back.
    embeddings = ROWS * WIDTH * 4
    others = {(collective.kind, collective.bytes) for collective in found}
    assert others >= {("all-gather", embeddings), ("reduce-scatter", embeddings // 8)}


def shapes_of(rows, length):
    """Tokens and keys to compile for, of which nothing is computed."""
    shape = (rows, length)
    ids, mask = jax.ShapeDtypeStruct(shape, jnp.int32), jax.ShapeDtypeStruct(shape, bool)
    return Tokens(ids, mask), jax.eval_shape(lambda: row_keys(rows))


def temporaries(execution, function, params, rows):
    """Bytes that the gradient of a tower holds beside its operands and results."""

    def compute(params, rows):
        return jnp.sum(execution.map_rows(function, params, rows)["embedding"])

    return jax.jit(jax.grad(compute)).lower(params, rows).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize(
    ("devices", "chunk", "chunks"), [(1, 0, 1), (1, 40, 1), (1, 39, 2), (8, 5, 1), (8, 3, 2), (8, 1, 5), (8, 40, 1)]
)
def test_chunks_are_counted_by_what_a_device_has(devices, chunk, chunks):
    mesh = mesh_of(devices)
    assert Execution(mesh, tower_chunk=chunk).chunks(ROWS) == chunks


def test_packed_rows_are_given_to_a_function_device_by_device():
    seen = []

    def function(params, rows):
        seen.append(len(rows))
        return params * rows

    mesh = make_mesh(MeshSettings())
    for execution in (Execution(mesh), Execution(mesh, packed=True), Execution(packed=True)):
        shape = jax.eval_shape(lambda rows, on=execution: on.map_rows(function, jnp.float32(2), rows), jnp.ones(ROWS))
        assert shape.shape == (ROWS,)
    assert seen == [ROWS, ROWS // 8, ROWS]


def test_activations_fall_in_proportion_to_the_chunk_and_are_predicted():
    params, rows = small_params(width=64), shapes_of(64, 64)
    for chunk in (64, 4):
        measured = temporaries(Execution(tower_chunk=chunk), embed, params, rows)
        # The prediction counts the result of dropout, which XLA recomputes here.
        np.testing.assert_allclose(measured, bytes_kept(embed, params, shapes_of(chunk, 64)), rtol=0.35)


def test_losses_are_dense_without_a_tile():
    seen = []

    def function(scale, rows, axis_name):
        seen.append((len(rows), axis_name))
        return scale * jnp.sum(rows)

    mesh, rows = make_mesh(MeshSettings()), jnp.ones(8)
    for execution in (Execution(mesh), Execution(loss_tile=4), Execution(mesh, loss_tile=4)):
        jax.eval_shape(lambda rows, execution=execution: execution.reduce_rows(function, 2.0, rows), rows)
    assert seen == [(8, None), (8, None), (1, BATCH_AXES)]


def summed(execution, cost=None):
    """A function of a sum over rows: with an activation in the middle, a float a row, and numbers for the log."""

    def function(params, rows, counts):
        (tokens, keys), floats = rows
        embedded = embed(params, (tokens, keys))["embedding"] * floats
        each = jnp.where(counts, jnp.sum(jnp.sin(embedded), axis=1), 0)
        return jnp.sum(each), {"rows": jnp.sum(counts)}

    def compute(params, floats, rows):
        total, others = execution.sum_rows(function, params, (rows, floats), cost=cost)
        return total**2, others

    return compute


def test_sums_and_their_gradients_do_not_depend_on_the_cut():
    floats = np.random.default_rng(1).normal(size=(ROWS, WIDTH)).astype(np.float32)
    given = small_params(), floats, (tokens(), row_keys(ROWS))

    def differentiated(execution, cost=None):
        return jax.jit(jax.value_and_grad(summed(execution, cost), (0, 1), has_aux=True))(*given)

    expected = differentiated(Execution())
    assert np.abs(expected[1][1]).min() > 0
    for devices, cost in ((1, lambda rows: length_of(rows[0])), (8, None)):
        execution = Execution(mesh_of(devices), tower_chunk=CHUNK)
        found = differentiated(execution, cost)
        assert found[0][1]["rows"] == ROWS
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4), found, expected)
        alone, _ = jax.jit(summed(execution, cost))(*given)
        np.testing.assert_allclose(alone, expected[0][0], rtol=1e-5)


def test_a_sum_holds_the_activations_of_one_chunk():
    rows = ROWS * 4
    given = small_params(), jnp.ones((rows, WIDTH)), (tokens(rows), row_keys(rows))

    def largest(chunk):
        compute = jax.value_and_grad(summed(Execution(tower_chunk=chunk)), (0, 1), has_aux=True)
        return largest_array(jax.make_jaxpr(compute)(*given))

    assert largest(0) == rows * LENGTH * WIDTH
    assert largest(CHUNK) < rows * LENGTH * WIDTH / 2
