import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import mesh_of
from pretended import pretended

from endx_jax.models.sharding_hints import platform
from endx_jax.parallel.execution import Execution
from endx_jax.parallel.mesh import MeshSettings, make_mesh
from endx_jax.pretrained.towers import compute_dtype


def meshes(devices: int):
    yield mesh_of(devices)
    if devices == 4:
        yield make_mesh(MeshSettings(fsdp=2), jax.devices()[:4])


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("chunk", [0, 1])
@pytest.mark.parametrize("devices", [1, 4])
def test_rows_are_traced_for_the_mesh_of_their_execution(devices, chunk, packed):
    rows, seen = jnp.arange(8.0), []

    def look(params, rows, counts=None):
        del params, counts
        seen.append(jax.sharding.get_abstract_mesh().abstract_device)
        return rows

    def summed(params, rows, counts):
        return jnp.sum(jnp.where(counts, look(params, rows), 0)), {}

    for mesh in meshes(devices):
        execution = Execution(mesh, tower_chunk=chunk, packed=packed)
        for call in (
            lambda execution=execution: execution.map_rows(look, None, rows),
            lambda execution=execution: execution.sum_rows(summed, None, rows),
            lambda execution=execution: execution.on_all(look, None, rows),
        ):
            seen.clear()
            jax.eval_shape(call)
            assert seen, mesh
            assert set(seen) == {mesh.abstract_mesh.abstract_device}


def test_a_pretended_mesh_is_believed_and_no_mesh_is_the_default_device():
    assert platform() == jax.default_backend() == platform(make_mesh(MeshSettings())) == "cpu"
    with jax.sharding.use_abstract_mesh(pretended("tpu")):
        assert platform() == "tpu"
    assert [compute_dtype("auto", name) for name in (None, "cpu", "tpu")] == [np.float32, np.float32, jnp.bfloat16]
