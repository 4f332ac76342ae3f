"""Flash attention of packed texts, emulated, against attention written out; and where it is taken."""

import dataclasses
import functools
import math

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
from endx_jax.models.attention import uses_kernel
from endx_jax.models.dropout import attention_dropout, example_keys, fold, words, words_by_place
from endx_jax.models.layout import lay_out
from endx_jax.models.packed_attention import attend_packed
from endx_jax.models.transformer import TransformerEncoder
from endx_jax.parallel.execution import Execution
from endx_jax.parallel.mesh import MeshSettings, make_mesh
from endx_jax.planning.compiled import traced_flops

WIDTH, BLOCK, SCALE = 20, 8, 0.3
# Two of one token, an empty one, two of the whole width, and padding, more than a block.
LENGTHS, PLACES = (1, 1, 0, 3, 4, 7, 15, 20, 20), 96


def bounds():
    ends = np.cumsum(LENGTHS)
    text = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
    fill = (0, PLACES - ends[-1])
    return (jnp.asarray(np.pad(x[text], fill), jnp.int32) for x in (ends - LENGTHS, ends))


def naive(query, key, value, begin, end, by_distance, causal=False):
    """Attention by whole matrices of scores, [H, T, T]."""
    place = jnp.arange(len(query))
    mask = ((begin[:, None] <= place[None]) & (place[None] < end[:, None]))[None]
    if causal:
        mask &= (place[None] <= place[:, None])[None]
    scores = SCALE * jnp.einsum("qhd,khd->hqk", query, key)
    if by_distance is not None:
        distance = jnp.clip(place[None] - place[:, None], 1 - WIDTH, WIDTH - 1)
        scores += jnp.moveaxis(by_distance[distance + WIDTH - 1], -1, 0)
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e30), axis=-1) * mask
    return jnp.einsum("hqk,khd->qhd", weights, value)


def drawn(heads, head_width, biased):
    keys = jax.random.split(jax.random.key(0), 5)
    arrays = [jax.random.normal(key, (PLACES, heads, head_width)) / head_width**0.25 for key in keys[:4]]
    return (*arrays, jax.random.normal(keys[4], (2 * WIDTH - 1, heads)) if biased else None)


def differentiate(attend, query, key, value, gradient, by_distance):
    """Attended values, and the gradients of all that has one."""

    @jax.jit
    def compute(*arrays):
        out, pull = jax.vjp(attend, *arrays)
        return out, *pull(gradient.astype(out.dtype))

    return [np.asarray(x, np.float64) for x in compute(query, key, value, by_distance) if x is not None]


def ours(query, key, value, by_distance, **options):
    options = {"width": WIDTH, "scale": SCALE, "block": BLOCK, "interpret": True} | options
    return attend_packed(query, key, value, *bounds(), by_distance=by_distance, **options)


def plain(query, key, value, by_distance, causal=False):
    return naive(query, key, value, *bounds(), by_distance, causal=causal)


SLOW = pytest.mark.slow


def assert_near(found, expected, tolerance=1e-5):
    """Each array differs by less than this part of its largest value."""
    for own, exact in zip(found, expected, strict=True):
        assert np.abs(own - exact).max() < tolerance * np.abs(exact).max()


@pytest.mark.parametrize(
    ("heads", "head_width", "biased", "causal"),
    [
        (2, 32, True, False),
        pytest.param(2, 32, False, True, id="causal"),
        pytest.param(10, 64, True, False, marks=SLOW),  # five steps of two heads
        pytest.param(2, 128, True, False, marks=SLOW),
        pytest.param(3, 24, True, False, marks=SLOW),
    ],
)
def test_values_and_all_gradients_are_those_of_attention_written_out(heads, head_width, biased, causal):
    arrays = drawn(heads, head_width, biased)
    with jax.default_matmul_precision("highest"):
        expected = differentiate(functools.partial(plain, causal=causal), *arrays)
    found = differentiate(functools.partial(ours, causal=causal), *arrays)
    assert len(found) == 4 + biased
    assert_near(found, expected)


def test_causal_blocks_without_pairs_are_skipped():
    query, key, value, gradient, _ = drawn(2, 32, False)
    begin, end, half = jnp.zeros(PLACES, jnp.int32), jnp.full(PLACES, PLACES, jnp.int32), PLACES // 2
    options = {"width": PLACES, "scale": SCALE, "block": BLOCK, "interpret": True, "causal": True}

    def attend(*arrays):
        return attend_packed(*arrays, begin, end, **options)

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


@pytest.mark.slow
@pytest.mark.parametrize("biased", [True, False])
def test_in_bfloat16_they_are_as_near_as_its_rounding(biased):
    arrays = drawn(2, 64, biased)
    *half, by_distance = (x.astype(jnp.bfloat16) for x in arrays[:4]), arrays[4]
    half = [*half[0]]
    expected = differentiate(plain, *(x.astype(jnp.float32) for x in half), by_distance)
    found = differentiate(ours, *half, by_distance)
    assert_near(found, expected, 2**-7)


RATE = 0.3


@functools.partial(jax.jit, static_argnums=(0, 1))
def kept_by_kernel(heads, split, value, begin, end, of_keys, first):
    """The weights [T, H, WIDTH] that the kernel does not drop, with the heads on `split` devices.

    Values that are one at the key's position show each weight; zero queries give all keys of a text the same. Dropout
    takes `first` for the first place of each token's text.
    """
    own, zero = heads // split, jnp.zeros_like(value)
    options = {"words": words_by_place(of_keys, first, heads), "rate": RATE, "all_heads": heads}
    options |= {"width": WIDTH, "scale": SCALE, "block": BLOCK, "interpret": True}
    outs = []
    for start in range(0, heads, own):
        query, ones = zero[:, start : start + own], value[:, start : start + own]
        outs.append(attend_packed(query, query, ones, begin, end, first_head=jnp.int32(start), **options))
    return jnp.concatenate(outs, axis=1)[..., :WIDTH] > 0


@pytest.mark.parametrize(("heads", "head_width", "splits"), [(8, 32, (2,)), (8, 128, (1,))])
def test_dropout_keeps_the_very_weights_that_padded_texts_keep(heads, head_width, splits):
    """On any packing and number of devices, bit by bit; with a negative control: a key that is one place off."""
    for lengths in (LENGTHS, (20, 3, 17, 1, 8), (5,) * 19):
        real, count = sum(lengths), len(lengths)
        keys = example_keys(jax.random.key(3, impl="threefry2x32"), jnp.int32(0), count)
        text = np.pad(np.repeat(np.arange(count), lengths), (0, PLACES - real))
        end = np.where(np.arange(PLACES) < real, np.cumsum(lengths)[text], 0)
        first = np.where(np.arange(PLACES) < real, end - np.asarray(lengths)[text], 0)
        position = np.where(np.arange(PLACES) < real, np.arange(PLACES) - first, 0)
        value = np.repeat(np.eye(head_width, dtype=np.float32)[position][:, None], heads, axis=1)
        of_keys, masks = jax.jit(
            lambda keys, text, position: (
                words(fold(keys[text], position)),
                attention_dropout(jnp.ones((len(keys), heads, WIDTH, WIDTH)), keys, RATE) > 0,
            )
        )(keys, text, position)
        masks = np.asarray(masks)
        inside = np.broadcast_to(np.arange(WIDTH) < (end - first)[:, None, None], (PLACES, heads, WIDTH))
        expected = masks[text, :, position] & inside
        assert 0 < expected.sum() < inside.sum()
        for split in splits:
            kept = functools.partial(kept_by_kernel, heads, split, value, first, end, of_keys)
            found, wrong = kept(first), kept(first + 1)
            np.testing.assert_array_equal(found, expected)
            assert (wrong != expected).sum() > 0.2 * inside.sum()


def test_padding_is_zero_and_a_width_that_is_too_small_would_be_seen():
    query, key, value, _, _ = drawn(1, 8, False)
    attend = functools.partial(ours, query, key, value, None)
    out, lost = (np.asarray(jax.jit(functools.partial(attend, width=width))()) for width in (WIDTH, 1))
    assert np.all(out[sum(LENGTHS) :] == 0)
    np.testing.assert_array_equal(lost[:2], out[:2])
    assert np.abs(lost - out).max() > 0.1


BERT = dataclasses.replace(TINY, layers=1, dropout=0.2, attention_dropout=0.3)
T5 = T5Config(vocab_size=50, width=16, layers=1, heads=2, head_width=8, mlp_width=12, buckets=8, max_distance=8)
T5 = dataclasses.replace(T5, attention_dropout=0.3)
TOWERS = {
    "bert": tower(BERT),
    "t5": Tower(TokenEmbedder(50, T5.width), TransformerEncoder(T5)),
    "gemma": Tower(TokenEmbedder(50, 16), TransformerEncoder(gemma())),  # causal, with windows and grouped heads
}
TOKENS = padded(texts((7, 1, 12, 4, 4, 1, 9, 4)), 16).replace(packing=Packing(42, ((8, 12),)))
KEYS = example_keys(jax.random.key(5, impl="threefry2x32"), jnp.int32(0), 8)


@pytest.fixture
def emulate(monkeypatch):
    """Function that lets texts take the path of TPUs, emulated, and returns a list that collects the calls."""

    def start():
        calls = []

        def emulated(*arrays, **options):
            calls.append((arrays[0].shape, options["by_distance"] is not None))
            return attend_packed(*arrays, **options, block=BLOCK, interpret=True)

        monkeypatch.setattr(attention, "attend_packed", emulated)
        for module in (attention, layout):
            monkeypatch.setattr(module, "platform", lambda: "tpu")
            monkeypatch.setattr(module, "BLOCK", BLOCK)
        return calls

    return start


def test_windows_in_the_kernel_are_those_of_padded_texts(emulate):
    arrays = [x.reshape(4, 24, 2, 32) for x in drawn(2, 32, False)[:4]]
    mask = jnp.asarray(np.arange(24) < np.array([[24], [17], [6], [0]]))
    options = {"scale": SCALE, "window": BLOCK + 1, "dropout_rate": RATE}

    def attend(query, key, value, _):
        out = attention.attend_within(query, key, value, layout.Padded(mask), **options)
        return jnp.where(mask[:, :, None, None], out, 0)

    expected = differentiate(attend, *arrays, None)
    assert not emulate()
    found = differentiate(attend, *arrays, None)
    assert_near(found, expected)


@pytest.mark.parametrize(
    ("name", "mesh", "packed", "call"),
    [
        pytest.param("bert", {"data": 4}, True, (32, 2, 8), marks=SLOW),
        ("t5", {"fsdp": 2, "tensor": 2}, False, (64, 1, 8)),
        ("gemma", {"fsdp": 2, "tensor": 2}, True, (32, 2, 8)),
    ],
)
def test_towers_give_the_embeddings_and_gradients_of_padded_texts(name, mesh, packed, call, emulate):
    model, count = TOWERS[name], 4
    params = random_params(model, TOKENS.replace(packing=None))

    def compute(execution, params, rows):
        def embed(params, rows):
            return model.apply({"params": params}, *rows)

        return jnp.sum(jnp.sin(3 * execution.map_rows(embed, params, rows)))

    def differentiate(execution, tokens):
        return jax.jit(jax.value_and_grad(functools.partial(compute, execution)))(params, (tokens, KEYS))

    expected, expected_gradient = differentiate(Execution(), TOKENS.replace(packing=None))
    calls = emulate()
    execution = Execution(make_mesh(MeshSettings(**mesh), jax.devices()[:count]), packed=packed)
    # The packing is of a device's rows.
    packing = Packing(30, ((8 // execution.shards, 12),)) if packed else None
    found, gradient = differentiate(execution, TOKENS.replace(packing=packing))
    assert set(calls) == {(call, name == "t5")}
    assert abs(found - expected) < 1e-5 * abs(expected)
    largest = max(np.abs(leaf).max() for leaf in jax.tree.leaves(expected_gradient))
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-5 * largest), gradient, expected_gradient
    )


@pytest.mark.parametrize(
    ("heads", "packed", "mesh", "platform", "expected"),
    [
        (4, True, {"tensor": 2}, "tpu", True),
        (4, False, {"tensor": 2}, "tpu", True),
        (4, True, {"tensor": 2}, "cpu", False),
        (4, True, {"tensor": 2}, "gpu", False),
        (3, True, {"tensor": 2}, "tpu", False),  # heads that two devices cannot share
        (4, False, {"fsdp": 8}, "tpu", True),
        (4, False, {"fsdp": 3}, "tpu", False),  # eight texts
    ],
)
def test_it_is_taken_on_tpus(heads, packed, mesh, platform, expected, monkeypatch):
    monkeypatch.setattr(attention, "platform", lambda: platform)
    texts = lay_out(TOKENS if packed else TOKENS.replace(packing=None))[1]
    mesh = make_mesh(MeshSettings(**mesh), jax.devices()[: math.prod(mesh.values())])
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        assert uses_kernel(texts, heads) is expected


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
@pytest.mark.parametrize(
    ("name", "mesh"), [("bert", {"data": 4}), ("t5", {"data": 2, "tensor": 2}), ("gemma", {"data": 4})]
)
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
