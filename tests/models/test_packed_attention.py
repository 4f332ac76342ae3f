"""Flash attention of packed texts, emulated, against attention written out; towers: see test_invariance.py."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import TINY, gemma, padded, random_params, texts, tower
from jax.experimental import topologies
from jax.sharding import NamedSharding, PartitionSpec

from endx_jax.batch import Packing
from endx_jax.models.packed_attention import Plan, attend_packed
from endx_jax.parallel.execution import Execution
from endx_jax.parallel.mesh import MeshSettings, make_mesh
from endx_jax.planning.compiled import traced_flops

WIDTH, BLOCK, SCALE = 20, 8, 0.3
# Two of one token, an empty one, two of the whole width, and padding, more than a block.
LENGTHS, PLACES = (1, 1, 0, 3, 4, 7, 15, 20, 20), 96
ENDS = np.cumsum(LENGTHS)
TEXT, FILL = np.repeat(np.arange(len(LENGTHS)), LENGTHS), (0, PLACES - ENDS[-1])
BOUNDS = jnp.asarray([np.pad(x[TEXT], FILL) for x in (ENDS - LENGTHS, ENDS)], jnp.int32)
SLOW = pytest.mark.slow


def naive(query, key, value, causal=False):
    """Attention by whole matrices of scores, [H, T, T]."""
    begin, end = BOUNDS
    place = jnp.arange(len(query))
    mask = ((begin[:, None] <= place[None]) & (place[None] < end[:, None]))[None]
    if causal:
        mask &= (place[None] <= place[:, None])[None]
    scores = SCALE * jnp.einsum("qhd,khd->hqk", query, key)
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e30), axis=-1) * mask
    return jnp.einsum("hqk,khd->qhd", weights, value)


def drawn(heads, head_width):
    draw = np.random.default_rng(0)
    return [draw.normal(0, head_width**-0.25, (PLACES, heads, head_width)).astype(np.float32) for _ in range(4)]


def differentiate(attend, query, key, value, gradient):
    """Attended values, and the gradients of all that has one."""

    @jax.jit
    def compute(*arrays):
        out, pull = jax.vjp(attend, *arrays)
        return out, *pull(gradient.astype(out.dtype))

    return [np.asarray(x, np.float64) for x in compute(query, key, value)]


def ours(query, key, value, causal=False, width=WIDTH, bounds=BOUNDS):
    plan = Plan(*query.shape, width=width, block=BLOCK, scale=SCALE, causal=causal, interpret=True)
    return attend_packed(query, key, value, bounds, plan)


def assert_near(found, expected, tolerance=1e-5):
    """Each array differs by less than this part of its largest value."""
    for own, exact in zip(found, expected, strict=True):
        assert np.abs(own - exact).max() < tolerance * np.abs(exact).max()


@pytest.mark.parametrize(
    ("heads", "head_width", "causal"),
    [
        (2, 32, False),
        pytest.param(2, 32, True, id="causal"),
        pytest.param(10, 64, False, marks=SLOW),  # five steps of two heads
        pytest.param(2, 128, False, marks=SLOW),
        pytest.param(3, 24, False, marks=SLOW),
    ],
)
def test_values_and_all_gradients_are_those_of_attention_written_out(heads, head_width, causal):
    arrays = drawn(heads, head_width)
    with jax.default_matmul_precision("highest"):
        expected = differentiate(functools.partial(naive, causal=causal), *arrays)
    assert_near(differentiate(functools.partial(ours, causal=causal), *arrays), expected)


def test_causal_blocks_without_pairs_are_skipped():
    query, key, value, gradient = drawn(2, 32)
    half, bounds = PLACES // 2, jnp.asarray([[0] * PLACES, [PLACES] * PLACES], jnp.int32)
    attend = functools.partial(ours, causal=True, width=PLACES, bounds=bounds)

    @jax.jit
    def computed(value, gradient):
        out, pull = jax.vjp(attend, query, key, value)
        return out, *pull(gradient)

    # Of later keys, no query before their block; of earlier queries, no key after their block.
    place, nan = np.arange(PLACES)[:, None, None], np.float32(np.nan)
    out, to_query, to_key, to_value = computed(value, gradient)
    found, found_to_query, *_ = computed(np.where(place < half - 1, value, nan), gradient)
    *_, found_to_key, found_to_value = computed(value, np.where(place > half, gradient, nan))
    before, after = slice(0, half - BLOCK), slice(half + BLOCK, PLACES)
    changed, whole = (found, found_to_query, found_to_key, found_to_value), (out, to_query, to_key, to_value)
    for own, exact, unseen in zip(changed, whole, (before, before, after, after), strict=True):
        np.testing.assert_array_equal(own[unseen], exact[unseen])
        assert np.isnan(own[half - BLOCK : half + BLOCK]).all()

    step = jax.make_jaxpr(lambda *x: jax.vjp(attend, *x)[1](gradient))(query, key, value)
    # 12 blocks have 78 pairs instead of 144: two products of a head forward, five backward.
    assert traced_flops(step) == (2 + 5) * 2 * 78 * BLOCK**2 * 2 * 32


@pytest.mark.parametrize(
    ("texts", "width", "pairs"),
    [(12, 8, 12), (24, 4, 12), (6, 16, 6 * 4), (1, 96, 12**2), (8, 12, 12 + 2 * 8), (1, 9, 12 + 2 * 11)],
)
def test_the_estimate_counts_the_pairs_of_blocks_that_share_a_text(texts, width, pairs):
    """Of texts of one block, half a block, two blocks and all; one and a half blocks; and a window of a block."""
    assert Plan(PLACES, 1, 8, width=width, block=BLOCK, scale=1.0, texts=texts).pairs == pairs


@pytest.mark.slow
def test_in_bfloat16_they_are_as_near_as_its_rounding():
    half = [x.astype(jnp.bfloat16) for x in drawn(2, 64)]
    expected = differentiate(naive, *(x.astype(jnp.float32) for x in half))
    assert_near(differentiate(ours, *half), expected, 2**-7)


def test_padding_is_zero_and_a_width_that_is_too_small_would_be_seen():
    query, key, value, _ = drawn(1, 8)
    out, lost = (np.asarray(jax.jit(functools.partial(ours, width=width))(query, key, value)) for width in (WIDTH, 1))
    assert np.all(out[sum(LENGTHS) :] == 0)
    np.testing.assert_array_equal(lost[:2], out[:2])
    assert np.abs(lost - out).max() > 0.1


@pytest.fixture(scope="module")
def v5e():
    """Four described TPU v5e chips, for which programs can be compiled."""
    pytest.importorskip("libtpu", reason="libtpu, the TPU compiler, is not installed")
    options = {"TPU_SKIP_MDS_QUERY": "1", "TPU_ACCELERATOR_TYPE": "v5litepod-4", "TPU_WORKER_HOSTNAMES": "localhost"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**options, "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}.items():
            patch.setenv(name, value)
        yield topologies.get_topology_desc("v5e:2x2", "tpu").devices


@pytest.mark.slow
@pytest.mark.parametrize(("name", "mesh"), [("bert", {"data": 2, "tensor": 2}), ("gemma", {"data": 4})])
def test_a_tower_for_tpus_has_no_scores_in_main_memory(name, mesh, v5e):
    """The path is the mesh's, in a process whose default device is a CPU."""
    model, rows, length = tower(TINY if name == "bert" else gemma()), 64, 28
    execution = Execution(make_mesh(MeshSettings(**mesh), v5e), packed=True)
    packing = Packing(640, ((rows // execution.shards, length),))
    tokens = padded(texts((7,) * rows), length).replace(packing=packing)
    params = jax.eval_shape(lambda: random_params(model, padded(texts((7,)), length)))

    def loss(params, tokens):
        embeddings = execution.map_rows(lambda params, rows: model.apply({"params": params}, rows), params, tokens)
        return jnp.sum(jnp.sin(embeddings))

    def given(tree, *axes):
        sharding = NamedSharding(execution.mesh, PartitionSpec(*axes))
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree)

    program = jax.jit(jax.grad(loss)).lower(given(params), given(tokens, ("data", "fsdp"))).compile()
    assert program.as_text().count("tpu_custom_call") >= 2
    assert f"{length},{length}]" not in program.as_text()
