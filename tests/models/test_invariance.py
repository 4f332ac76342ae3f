"""Embeddings and gradients depend on neither padding, order, packing, scan, recomputation, chunks, devices nor kernel.

Every row of the matrix computes what its family computes of padded texts on one device, layer by layer, with the same
dropout. tests/methods/test_packed.py compares losses of packed texts, tests/parallel/test_execution.py chunks.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import gemma, random_params, tower
from packed_texts import BERT, EXACT, KEYS, SPARE, TOKENS

from endx_jax.batch import Packing, Tokens
from endx_jax.encoders.t5 import T5Config
from endx_jax.models import (
    MultiHopAttention,
    RecurrentConfig,
    RecurrentEncoder,
    TokenEmbedder,
    Tower,
    attention,
    layout,
    packed_attention,
)
from endx_jax.models.packed_attention import attend_packed
from endx_jax.models.pooling import first, last
from endx_jax.parallel import MeshSettings, batch_sharding, make_mesh, state_shardings
from endx_jax.parallel.execution import Execution

BLOCK = 8  # tokens of a block of the kernel

T5 = T5Config(vocab_size=50, width=16, layers=2, heads=2, head_width=8, mlp_width=12, buckets=8, max_distance=8)
HOPS = MultiHopAttention(hops=3, width=4)
TRANSFORMERS = {
    "bert": (BERT, first),
    "deep bert": (dataclasses.replace(BERT, layers=2), first),
    "bert, hidden dropout": (dataclasses.replace(BERT, attention_dropout=0.0), first),
    "t5": (T5, HOPS),  # which has a bias of attention scores
    "gemma": (gemma(), last),  # causal, with windows and grouped heads
    "gemma, hidden dropout": (dataclasses.replace(gemma(), attention_dropout=0.0), last),
}


def build(family: str, **options) -> Tower:
    """The tower of a family; recurrent ones are float64, which all parts but attention keep to."""
    if family in TRANSFORMERS:
        config, pooling = TRANSFORMERS[family]
        return tower(config, pooling=pooling, **options)
    wide = jnp.dtype(jnp.float64)
    config = RecurrentConfig(family, layers=2, width=6, dropout=0.3)
    return Tower(TokenEmbedder(50, 5, wide), RecurrentEncoder(config, wide, **options), pooling=HOPS)


@functools.cache
def params_of(family: str):
    kind = jnp.float32 if family in TRANSFORMERS else jnp.float64
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, kind), random_params(build(family), TOKENS))


class Row(NamedTuple):
    """A family, and how its texts are laid out, its layers are run, and its rows are split."""

    family: str
    packing: Packing | None = None
    turned: bool = False  # in reverse order, and padded further with tokens that are no padding
    scan_layers: bool = False
    remat: str = "none"
    mesh: dict = {}  # noqa: RUF012  # read only
    chunk: int = 0
    kernel: set | None = None  # shapes [tokens, heads, width] for which the kernel of TPUs is called, emulated

    def __str__(self):
        changed = {name: value for name, value in self._asdict().items() if value != self._field_defaults.get(name)}
        return ", ".join(f"{name} {value}".removeprefix("family ") for name, value in changed.items())


def differentiate(row: Row, keys=KEYS):
    """Embeddings in the order of `TOKENS`, and the gradient of a loss that no symmetry hides."""
    wide = row.family not in TRANSFORMERS
    options = {"scan_layers": row.scan_layers} if row.family in TRANSFORMERS else {}
    model = build(row.family, remat=row.remat, **options)
    mesh = make_mesh(MeshSettings(**row.mesh), jax.devices()[: 4 if row.mesh else 1])
    execution = Execution(mesh, tower_chunk=row.chunk, packed=row.packing is not None)

    def loss(params, rows):
        embedded = execution.map_rows(lambda params, rows: model.apply({"params": params}, *rows), params, rows)
        return jnp.sum(jnp.sin(3 * embedded + jnp.arange(embedded.shape[1])[None])), embedded

    tokens = dataclasses.replace(TOKENS, packing=row.packing)
    if row.turned:
        mask = jnp.pad(tokens.mask[::-1], ((0, 0), (0, 9)))
        ids = jnp.pad(tokens.ids[::-1], ((0, 0), (0, 9)))
        tokens, keys = Tokens(jnp.where(mask, ids, 49), mask), keys[::-1]
    with jax.enable_x64(wide):
        params = jax.device_put(params_of(row.family), state_shardings(params_of(row.family), mesh))
        rows = jax.device_put((tokens, keys), batch_sharding(mesh))
        (_, embedded), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(params, rows)
    return jax.device_get((embedded[::-1] if row.turned else embedded, gradient))


@functools.cache
def plain(family: str):
    return differentiate(Row(family))


def slow(*cells, **changes):
    return pytest.param(Row(*cells, **changes), marks=pytest.mark.slow)


TWO = {"fsdp": 2, "tensor": 2}
ROWS = [
    Row("bert", EXACT),
    Row("bert", turned=True, chunk=1),  # each text alone
    slow("deep bert", scan_layers=True, remat="all_dots"),
    slow("deep bert", scan_layers=True),
    slow("deep bert", remat="dots"),
    slow("deep bert", EXACT, scan_layers=True, remat="full"),
    Row("bert, hidden dropout", mesh=TWO, kernel={(64, 1, 8)}),
    slow("bert, hidden dropout", Packing(30, ((2, 12),)), mesh={"data": 4}, kernel={(32, 2, 8)}),
    Row("bert", Packing(30, ((2, 12),)), mesh={"data": 4}, kernel=set()),
    Row("t5", Packing(42, ((2, 1), (6, 12)))),
    Row("t5", turned=True, scan_layers=True, remat="full"),
    Row("t5", Packing(30, ((4, 12),)), mesh=TWO, kernel=set()),
    Row("gemma", scan_layers=True, remat="dots"),
    Row("gemma", SPARE, remat="full"),
    Row("gemma", mesh=TWO, remat="all_dots"),
    slow("gemma", mesh={"tensor": 4}),  # more devices than heads of keys
    Row("gemma, hidden dropout", Packing(30, ((4, 12),)), mesh=TWO, kernel={(32, 2, 8)}),
    Row("rnn", turned=True, remat="full"),
    Row("gru", SPARE),
    Row("gru", turned=True),
    Row("lstm", turned=True),
    slow("lstm", EXACT),
]


@pytest.fixture
def emulate(monkeypatch):
    """Function that lets texts take the path of TPUs, emulated, and returns a list that collects the calls."""

    def start():
        calls = []

        def emulated(query, key, value, bounds, plan):
            calls.append(query.shape)
            return attend_packed(query, key, value, bounds, dataclasses.replace(plan, interpret=True))

        monkeypatch.setattr(packed_attention, "attend_packed", emulated)
        monkeypatch.setattr(packed_attention, "block_size", lambda tokens, width: BLOCK)
        for module in (attention, layout):  # no other way: the platform is the mesh's, and no TPU is here
            monkeypatch.setattr(module, "platform", lambda: "tpu")
            monkeypatch.setattr(module, "BLOCK", BLOCK)
        return calls

    return start


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_embeddings_and_gradients_are_those_of_padded_texts_on_one_device(row, emulate):
    expected, expected_gradient = plain(row.family)
    calls = emulate() if row.kernel is not None else []
    found, gradient = differentiate(row)
    assert set(calls) == (row.kernel or set())
    only_layers = row._replace(scan_layers=False, remat="none") == Row(row.family)
    tolerance = 1e-10 if row.family not in TRANSFORMERS else 1e-6 if only_layers else 1e-5
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)
    leaves = jax.tree_util.tree_leaves_with_path(expected_gradient)
    largest = max(np.abs(leaf).max() for _, leaf in leaves)
    assert largest > 0.1
    for (path, leaf), own in zip(leaves, jax.tree.leaves(gradient), strict=True):
        message = jax.tree_util.keystr(path)
        np.testing.assert_allclose(own, leaf, rtol=0, atol=tolerance * largest, err_msg=message)


def test_other_dropout_and_another_token_would_be_seen():
    found, _ = differentiate(Row("bert", EXACT), KEYS[::-1])
    assert np.abs(found - plain("bert")[0]).max() > 1e-2
    for family in ("bert", "rnn", "gru", "lstm"):
        embed = jax.jit(functools.partial(build(family).apply, {"params": params_of(family)}))
        with jax.enable_x64(family not in TRANSFORMERS):
            changed = np.abs(embed(TOKENS) - embed(TOKENS.replace(mask=TOKENS.mask.at[0, 7].set(True)))).max(axis=1)
        assert changed[0] > 1e-3
        np.testing.assert_array_equal(changed[1:], 0)


def test_windows_in_the_kernel_are_those_of_padded_texts(emulate):
    draw = np.random.default_rng(0)
    query, key, value, cotangent = (jnp.asarray(draw.normal(size=(4, 24, 2, 32)), jnp.float32) for _ in range(4))
    mask = jnp.asarray(np.arange(24) < np.array([[24], [17], [6], [0]]))
    pattern = attention.Pattern(0.2, window=BLOCK + 1)

    def attend(query, key, value):
        out = attention.attend_within(query, key, value, layout.Padded(mask), pattern)
        return jnp.where(mask[:, :, None, None], out, 0)

    def computed():
        @jax.jit  # a new function: another path is traced
        def compute(*arrays):
            out, pull = jax.vjp(attend, *arrays)
            return out, *pull(cotangent)

        return compute(query, key, value)

    expected, calls = computed(), emulate()
    for own, exact in zip(computed(), expected, strict=True):
        assert np.abs(own - exact).max() < 1e-5 * np.abs(exact).max()
    assert calls
