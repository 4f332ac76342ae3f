import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from endx_jax.errors import EndxError
from endx_jax.parallel import MeshSettings, batch_sharding, local_rows, make_mesh, place, state_shardings, to_global
from endx_jax.parallel.sharding import partition_spec


def test_mesh_takes_the_devices_left_over():
    mesh = make_mesh(MeshSettings(fsdp=2, tensor=2))
    assert dict(mesh.shape) == {"data": 2, "fsdp": 2, "tensor": 2}


def test_mesh_that_does_not_fit_the_devices_is_refused():
    with pytest.raises(EndxError, match="does not fit 8 devices"):
        make_mesh(MeshSettings(data=3))


@pytest.mark.parametrize("sizes", [{"data": 0}, {"tensor": -2}, {"data": -1, "fsdp": -1}])
def test_impossible_mesh_settings_are_refused(sizes):
    with pytest.raises(EndxError, match="mesh"):
        MeshSettings(**sizes)


def test_parameters_follow_the_table():
    mesh = make_mesh(MeshSettings(fsdp=2, tensor=2))
    layer = "dual_encoder/shared/encoder/layers_3"
    assert partition_spec(f"{layer}/attention/query/kernel", (32, 32), mesh) == PartitionSpec("fsdp", "tensor")
    assert partition_spec(f"{layer}/mlp_down/kernel", (64, 32), mesh) == PartitionSpec("tensor", "fsdp")
    assert partition_spec(f"{layer}/mlp_norm/scale", (32,), mesh) == PartitionSpec(None)


def test_recurrences_and_poolings_are_split_outside_their_loops_only():
    mesh, tower = make_mesh(MeshSettings(fsdp=2, tensor=2)), "dual_encoder/shared"
    layer = f"{tower}/encoder/layers_0"
    assert partition_spec(f"{layer}/input_kernel", (32, 2, 3, 16), mesh) == PartitionSpec("fsdp", None, None, None)
    for name, shape in (
        ("recurrent_kernel", (2, 16, 3, 16)),
        ("input_bias", (2, 3, 16)),
        ("recurrent_bias", (2, 3, 16)),
    ):
        assert not any(partition_spec(f"{layer}/{name}", shape, mesh))
    assert partition_spec(f"{tower}/pooling/hidden_kernel", (32, 8), mesh) == PartitionSpec("fsdp", None)
    assert partition_spec(f"{tower}/pooling/hop_kernel", (8, 3), mesh) == PartitionSpec("fsdp", None)


def test_the_matrices_of_heads_are_split_and_their_filters_are_not():
    mesh, head = make_mesh(MeshSettings(fsdp=2, tensor=2)), "dual_encoder/question/head"
    for name, shape in (("fcrr/hidden", (32, 8)), ("fcrr/output", (8, 32)), ("convrr/output", (64, 32))):
        assert partition_spec(f"{head}/{name}/kernel", shape, mesh) == PartitionSpec("fsdp", None)
        assert partition_spec(f"{head}/{name}/bias", shape[1:], mesh) == PartitionSpec(None)
    assert not any(partition_spec(f"{head}/convrr/filters/kernel", (5, 1, 16), mesh))


def test_optimizer_arrays_lie_where_their_parameter_does():
    mesh = make_mesh(MeshSettings(fsdp=2, tensor=2))
    path = "shared/encoder/layers_0/mlp_up/kernel"
    assert partition_spec(f"opt_state/1/mu/{path}", (32, 64), mesh) == partition_spec(f"params/{path}", (32, 64), mesh)


@pytest.mark.parametrize(
    ("path", "shape"),
    [
        ("v_row/encoder/layers_0/mlp_up/kernel", (32,)),
        ("v_col/encoder/layers/mlp_up/kernel", (12, 64)),
        ("v/encoder/layers_0/mlp_up/kernel", (1,)),
        ("v/encoder/layers/mlp_up/kernel", (12, 1)),
        ("v_row/encoder/layers/mlp_up/bias", (12, 1)),
        ("v_row/log_temperature", (1,)),
    ],
)
def test_what_an_optimizer_keeps_in_another_shape_stays_whole(path, shape):
    spec = partition_spec(f"opt_state/0/{path}", shape, make_mesh(MeshSettings(fsdp=2, tensor=2)))
    assert not any(spec)


def test_stacked_layers_are_split_inside_the_layer():
    mesh = make_mesh(MeshSettings(fsdp=2, tensor=2))
    spec = partition_spec("encoder/layers/attention/output/kernel", (12, 32, 32), mesh)
    assert spec == PartitionSpec(None, "tensor", "fsdp")


def test_a_dimension_that_does_not_divide_stays_whole():
    mesh = make_mesh(MeshSettings(fsdp=2, tensor=2))
    assert partition_spec("token_embedder/embedding", (301, 32), mesh) == PartitionSpec(None, "fsdp")


def test_a_parameter_without_a_rule_is_refused_by_name():
    with pytest.raises(EndxError, match="mystery/kernel"):
        partition_spec("mystery/kernel", (2, 2), make_mesh(MeshSettings()))


def test_place_and_shardings_keep_values():
    mesh = make_mesh(MeshSettings(fsdp=4, tensor=2))
    tree = {"mlp_up": {"kernel": np.arange(64.0, dtype=np.float32).reshape(8, 8)}, "step": np.int32(3)}
    placed = place(tree, state_shardings(tree, mesh))
    assert len({shard.device for shard in placed["mlp_up"]["kernel"].addressable_shards}) == 8
    assert placed["mlp_up"]["kernel"].addressable_shards[0].data.shape == (2, 4)
    np.testing.assert_array_equal(placed["mlp_up"]["kernel"], tree["mlp_up"]["kernel"])


def test_rows_of_one_process_are_all_rows():
    assert local_rows(make_mesh(MeshSettings(fsdp=2)), 16) == slice(0, 16)


def test_a_batch_that_does_not_divide_over_the_devices_is_refused():
    with pytest.raises(EndxError, match="batch of 12 does not divide over 8 devices"):
        local_rows(make_mesh(MeshSettings()), 12)


def test_to_global_splits_the_batch():
    mesh = make_mesh(MeshSettings(fsdp=2, tensor=2))
    array = to_global(np.arange(8), mesh, 8)
    assert array.sharding.is_equivalent_to(batch_sharding(mesh), 1)
    assert array.addressable_shards[0].data.shape == (2,)
    assert jnp.array_equal(jax.device_put(array, jax.devices()[0]), jnp.arange(8))
