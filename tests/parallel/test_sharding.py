import dataclasses
import functools
import importlib
import pkgutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from endx_jax import recipes
from endx_jax.errors import EndxError
from endx_jax.experiment.config import resolve
from endx_jax.experiment.model import Model
from endx_jax.parallel import (
    MeshSettings,
    batch_sharding,
    local_rows,
    make_mesh,
    place,
    sharding,
    state_shardings,
    to_global,
)
from endx_jax.parallel.sharding import RULES, partition_spec, rule_of
from endx_jax.pretrained.published import outline, outline_tokens
from endx_jax.pretrained.towers import fill_in
from endx_jax.training.optimizer import make_optimizer, parameter_paths
from endx_jax.training.state import TrainState


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


RECIPES = [
    ("quickstart", ()),
    ("minilm_pairs", ()),
    ("t5", ("large,ade",)),
    ("t5", ("xxl,sde",)),
    ("bert_large_sde", ()),
    ("endx", ("endx,lstm",)),
    ("endx", ("dual,transformer",)),
    ("yu", ("cross_vae",)),
    ("gru_dual_vae", ()),
    ("fcrr_convrr", ()),
]


def test_every_recipe_is_listed_or_like_one_that_is():
    """Others differ from these in data or size: their parameters have the same paths."""
    alike = {"base", "bert_base_sde", "convrr", "endx_minilm_squad", "fcrr", "glove", "gru_cross_vae", "gru_dual"}
    alike |= {"bert_qa", "gru_squad", "minilm", "minilm_squad", "vae_squad"}
    there = {module.name for module in pkgutil.iter_modules(recipes.__path__)}
    assert there == alike | {name for name, _ in RECIPES}


def parameter_shapes(name: str, arguments: tuple = (), **changes) -> dict:
    """Shapes of all parameters of a recipe's objective, by path, without weights or tokenizers."""
    config = importlib.import_module(f"endx_jax.recipes.{name}").get_config(*arguments)
    config.model.update(changes)
    settings = resolve(config)
    described = outline_tokens if settings.model.encoder else outline
    source = described(settings.model.pretrained)
    settings = dataclasses.replace(settings, model=fill_in(settings.model, source))
    model = Model(settings, {"question": source, "answer": source}, {})
    optimizer = make_optimizer(settings.optimizer, 20_000, model.abstract_params())
    return jax.eval_shape(functools.partial(TrainState.create, optimizer=optimizer), model.abstract_params())


@pytest.mark.parametrize(("name", "arguments"), RECIPES)
def test_every_array_of_a_recipes_state_has_one_rule(name, arguments):
    mesh = make_mesh(MeshSettings(fsdp=2, tensor=2))
    state = parameter_shapes(name, arguments)
    shardings = state_shardings(state, mesh)  # raises where no rule matches, or two
    paths = parameter_paths(state.params)
    assert {rule_of(path).pattern for path in paths} <= {rule.pattern for rule in RULES}
    # What the table splits is split, wherever its size can be.
    for path, leaf in paths.items():
        axes = rule_of(path).axes
        found = parameter_paths(shardings.params)[path].spec[len(leaf.shape) - len(axes) :]
        for axis, wanted, size in zip(found, axes, leaf.shape[len(leaf.shape) - len(axes) :], strict=True):
            assert axis == wanted or size % 2


def test_two_rules_for_one_parameter_are_refused(monkeypatch):
    path = "dual_encoder/shared/encoder/layers_0/mlp_up/kernel"
    assert rule_of(path).axes == ("fsdp", "tensor")
    rule_of.cache_clear()
    monkeypatch.setattr(sharding, "RULES", (*RULES, sharding.Rule(r"mlp_\w+/kernel", (None, None))))
    with pytest.raises(
        EndxError, match=r"the sharding rules .* and mlp_\\w\+/kernel all match the parameter .*/mlp_up/"
    ):
        rule_of(path)
    rule_of.cache_clear()


def test_a_parameter_of_another_rank_than_its_rule_is_refused():
    with pytest.raises(EndxError, match=r"is for 2 dimensions, and the parameter .* has the shape \(2, 3, 4\)"):
        partition_spec("encoder/layers_0/mlp_up/kernel", (2, 3, 4), make_mesh(MeshSettings()))


def test_the_moments_of_adam_lie_where_their_parameters_do_in_a_real_state():
    state = parameter_shapes("bert_large_sde")
    shardings = state_shardings(state, make_mesh(MeshSettings(data=1, fsdp=4, tensor=2)))
    moments = shardings.opt_state[1]
    assert moments.mu == moments.nu == shardings.params
