"""Flash attention of packed texts, emulated, against attention written out; and where it is taken."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import TINY, gemma, padded, random_params, texts, tower
from jax.experimental import topologies
from jax.sharding import NamedSharding, PartitionSpec

from endx_jax.batch import Packing
from endx_jax.encoders.t5 import T5Config
from endx_jax.models import TokenEmbedder, Tower, attention, layout
from endx_jax.models.dropout import example_keys
from endx_jax.models.packed_attention import Plan, attend_packed
from endx_jax.models.transformer import TransformerEncoder
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
    keys = jax.random.split(jax.random.key(0), 4)
    return [jax.random.normal(key, (PLACES, heads, head_width)) / head_width**0.25 for key in keys]


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
    out, to_query, to_key, to_value = computed(value, gradient)
    found, found_to_query, *_ = computed(value.at[half - 1 :].set(jnp.nan), gradient)
    *_, found_to_key, found_to_value = computed(value, gradient.at[: half + 1].set(jnp.nan))
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


BERT = dataclasses.replace(TINY, layers=1, dropout=0.2, attention_dropout=0.0)
T5 = T5Config(vocab_size=50, width=16, layers=1, heads=2, head_width=8, mlp_width=12, buckets=8, max_distance=8)
TOWERS = {
    "bert": tower(BERT),
    "bert, attention dropout": tower(dataclasses.replace(BERT, attention_dropout=0.3)),
    "t5": Tower(TokenEmbedder(50, T5.width), TransformerEncoder(dataclasses.replace(T5, attention_dropout=0.0))),
    "gemma": Tower(
        TokenEmbedder(50, 16), TransformerEncoder(dataclasses.replace(gemma(), attention_dropout=0.0))
    ),  # causal, with windows and grouped heads
}
TOKENS = padded(texts((7, 1, 12, 4, 4, 1, 9, 4)), 16).replace(packing=Packing(42, ((8, 12),)))
KEYS = example_keys(jax.random.key(5, impl="threefry2x32"), jnp.int32(0), 8)


@pytest.fixture
def emulate(monkeypatch):
    """Function that lets texts take the path of TPUs, emulated, and returns a list that collects the calls."""

    def start():
        calls = []

        def emulated(query, key, value, bounds, plan):
            calls.append(query.shape)
            return attend_packed(query, key, value, bounds, dataclasses.replace(plan, interpret=True))

        monkeypatch.setattr(attention, "attend_packed", emulated)
        monkeypatch.setattr(attention, "block_size", lambda tokens, width: BLOCK)
        for module in (attention, layout):
            monkeypatch.setattr(module, "platform", lambda: "tpu")
            monkeypatch.setattr(module, "BLOCK", BLOCK)
        return calls

    return start


def test_windows_in_the_kernel_are_those_of_padded_texts(emulate):
    arrays = [x.reshape(4, 24, 2, 32) for x in drawn(2, 32)]
    mask = jnp.asarray(np.arange(24) < np.array([[24], [17], [6], [0]]))
    pattern = attention.Pattern(SCALE, window=BLOCK + 1)

    def attend(query, key, value):
        out = attention.attend_within(query, key, value, layout.Padded(mask), pattern)
        return jnp.where(mask[:, :, None, None], out, 0)

    expected = differentiate(attend, *arrays)
    calls = emulate()
    found = differentiate(attend, *arrays)
    assert_near(found, expected)
    assert calls


@pytest.mark.parametrize(
    ("name", "mesh", "packed", "calls"),
    [
        pytest.param("bert", {"data": 4}, True, {(32, 2, 8)}, marks=SLOW),
        ("bert", {"fsdp": 2, "tensor": 2}, False, {(64, 1, 8)}),
        ("bert, attention dropout", {"data": 4}, True, set()),
        ("t5", {"fsdp": 2, "tensor": 2}, True, set()),
        ("gemma", {"fsdp": 2, "tensor": 2}, True, {(32, 2, 8)}),
    ],
)
def test_towers_give_the_embeddings_and_gradients_of_padded_texts(name, mesh, packed, calls, emulate):
    model, count = TOWERS[name], 4
    params = random_params(model, TOKENS.replace(packing=None))

    def compute(execution, params, rows):
        def embed(params, rows):
            return model.apply({"params": params}, *rows)

        return jnp.sum(jnp.sin(3 * execution.map_rows(embed, params, rows)))

    def differentiate(execution, tokens):
        return jax.jit(jax.value_and_grad(functools.partial(compute, execution)))(params, (tokens, KEYS))

    expected, expected_gradient = differentiate(Execution(), TOKENS.replace(packing=None))
    taken = emulate()
    execution = Execution(make_mesh(MeshSettings(**mesh), jax.devices()[:count]), packed=packed)
    # The packing is of a device's rows.
    packing = Packing(30, ((8 // execution.shards, 12),)) if packed else None
    found, gradient = differentiate(execution, TOKENS.replace(packing=packing))
    assert set(taken) == calls
    assert abs(found - expected) < 1e-5 * abs(expected)
    largest = max(np.abs(leaf).max() for leaf in jax.tree.leaves(expected_gradient))
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-5 * largest), gradient, expected_gradient
    )


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
    model, rows, length = TOWERS[name], 64, 28
    execution = Execution(make_mesh(MeshSettings(**mesh), v5e), packed=True)
    packing = Packing(640, ((rows // execution.shards, length),))
    tokens = padded(texts((7,) * rows), length).replace(packing=packing)
    params = jax.eval_shape(lambda: random_params(model, TOKENS.replace(packing=None)))

    def loss(params, tokens):
        embeddings = execution.map_rows(lambda params, rows: model.apply({"params": params}, rows), params, tokens)
        return jnp.sum(jnp.sin(embeddings))

    def given(tree, *axes):
        sharding = NamedSharding(execution.mesh, PartitionSpec(*axes))
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree)

    program = jax.jit(jax.grad(loss)).lower(given(params), given(tokens, ("data", "fsdp"))).compile()
    assert program.as_text().count("tpu_custom_call") >= 2
    assert f"{length},{length}]" not in program.as_text()
