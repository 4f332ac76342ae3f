"""Decoders recomputed, scanned, packed, and split over devices."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import gemma, padded, random_params, texts

from endx_jax.batch import Packing
from endx_jax.models import TokenEmbedder, Tower
from endx_jax.models.dropout import example_keys
from endx_jax.models.pooling import last
from endx_jax.models.transformer import TransformerEncoder
from endx_jax.parallel.execution import Execution
from endx_jax.parallel.mesh import MeshSettings, make_mesh
from endx_jax.parallel.sharding import batch_sharding, state_shardings

LENGTHS = (12, 5, 1, 7, 3, 9, 2, 4)
TOKENS = padded(texts(LENGTHS), 12)
KEYS = example_keys(jax.random.key(3), 0, len(LENGTHS))


def decoder(**options) -> Tower:
    return Tower(TokenEmbedder(50, 16), TransformerEncoder(gemma(), **options), last)


PARAMS = random_params(decoder(), TOKENS)


def differentiate(tower: Tower, tokens=TOKENS, mesh: dict | None = None):
    """Value and gradient of a scalar of the embeddings, with dropout."""
    execution, params, rows = Execution(packed=tokens.packing is not None), PARAMS, (tokens, KEYS)
    if mesh:
        devices = make_mesh(MeshSettings(**mesh), jax.devices()[:4])
        execution = Execution(devices, packed=tokens.packing is not None)
        params = jax.device_put(params, state_shardings(params, devices))
        rows = jax.device_put(rows, batch_sharding(devices))

    def loss(params, rows):
        embedded = execution.map_rows(lambda params, rows: tower.apply({"params": params}, *rows), params, rows)
        return jnp.sum(jnp.sin(3 * embedded))

    return jax.jit(jax.value_and_grad(loss))(params, rows)


@pytest.fixture(scope="module")
def expected():
    return differentiate(decoder())


@pytest.mark.parametrize(
    ("options", "packed", "mesh"),
    [
        ({"scan_layers": True, "remat": "dots"}, False, None),
        ({"remat": "full"}, True, None),
        ({}, False, {"fsdp": 2, "tensor": 2}),
        pytest.param({}, False, {"tensor": 4}, marks=pytest.mark.slow),  # more devices than heads of keys
    ],
    ids=["scanned", "packed", "fsdp and tensor", "tensor"],
)
def test_neither_layouts_nor_recomputation_nor_devices_change_a_decoder(expected, options, packed, mesh):
    tokens = TOKENS.replace(packing=Packing(sum(LENGTHS), ((8, 12),))) if packed else TOKENS
    value, gradient = differentiate(decoder(**options), tokens, mesh)
    np.testing.assert_allclose(value, expected[0], rtol=1e-5)
    largest = max(np.abs(leaf).max() for leaf in jax.tree.leaves(expected[1]))
    chex.assert_trees_all_close(gradient, expected[1], rtol=0, atol=1e-5 * largest)
