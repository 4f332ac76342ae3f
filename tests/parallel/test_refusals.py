"""Meshes, rules and configurations of processes that are refused: the call, and the field and remedy of its line."""

import jax
import pytest
from refusals import check_refusal

from endx_jax.parallel import MeshSettings, Rule, environment, local_rows, make_mesh
from endx_jax.parallel.sharding import partition_spec

KERNEL = "encoder/layers_0/mlp_up/kernel"


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: make_mesh(MeshSettings(data=3)), ["data=3", "8 devices", "1, 2, 4, 8"]),
        (lambda: MeshSettings(data=0), ["mesh", "data"]),
        (lambda: MeshSettings(tensor=-2), ["mesh", "tensor"]),
        (lambda: MeshSettings(data=-1, fsdp=-1), ["mesh"]),
        (lambda: partition_spec("mystery/kernel", (2, 2), make_mesh(MeshSettings())), ["mystery/kernel", "METHOD"]),
        (lambda: partition_spec(KERNEL, (2, 3, 4), make_mesh(MeshSettings())), [KERNEL, "2 dimensions", "(2, 3, 4)"]),
        (lambda: Rule("own/kernel", ("fdsp", None)), ["own/kernel", "'fdsp'", "did you mean 'fsdp'"]),
        (lambda: local_rows(make_mesh(MeshSettings()), 12), ["batch of 12", "8 devices"]),
    ],
)
def test_a_mesh_a_rule_or_a_batch_that_does_not_fit_is_named(call, named):
    check_refusal(call, *named)


@pytest.mark.parametrize(
    ("address", "index", "count", "named"),
    [
        ("a:1", "2", "2", ["process id is 2", "2 processes"]),
        ("a", "1", "2", ["'a'", "port"]),
        ("a:65536", "1", "2", ["'a:65536'", "port below 65,536"]),
        ("localhost:1", "0", "", [environment.COUNT, environment.INDEX]),
        ("localhost:1", "0", "two", [environment.COUNT, environment.INDEX]),
    ],
)
def test_an_impossible_configuration_of_processes_names_its_variables(variables, address, index, count, named):
    variables(COORDINATOR=address, INDEX=index, **({"COUNT": count} if count else {}))
    check_refusal(environment.read_environment, *named)


@pytest.mark.parametrize(
    ("setting", "named", "of_training"),
    [
        (lambda: jax.debug_infs(True), ["jax_debug_infs=True", "unset JAX_DEBUG_INFS"], False),
        (lambda: jax.transfer_guard("disallow"), ["unset JAX_TRANSFER_GUARD"], False),
        (lambda: jax.transfer_guard_host_to_device("disallow"), ["unset JAX_TRANSFER_GUARD_HOST_TO_DEVICE"], False),
        (lambda: jax.enable_x64(True), ["jax_enable_x64=True", "unset JAX_ENABLE_X64"], True),
        (lambda: jax.numpy_dtype_promotion("strict"), ["jax_numpy_dtype_promotion=strict"], True),
        (jax.disable_jit, ["jax_disable_jit=True"], True),
        (jax.checking_leaks, ["jax_check_tracer_leaks=True"], True),
    ],
)
def test_settings_of_jax_that_fail_are_named_before_anything_is_compiled(setting, named, of_training):
    environment.check_flags(training=True)
    with setting():
        check_refusal(lambda: environment.check_flags(training=True), *named)
        if of_training:
            make_mesh(MeshSettings())
        else:
            check_refusal(lambda: make_mesh(MeshSettings()), *named)
