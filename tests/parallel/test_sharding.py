import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import one_line_error
from jax.sharding import PartitionSpec

from endx_jax import methods
from endx_jax.errors import EndxError
from endx_jax.experiment.config import resolve
from endx_jax.experiment.model import Model
from endx_jax.methods import METHODS, find_method, register
from endx_jax.methods.config import load_recipe, recipe_files
from endx_jax.parallel import (
    MeshSettings,
    Rule,
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
from endx_jax.training.optimizer import make_optimizer
from endx_jax.training.step import TrainState


def test_a_mesh_takes_the_devices_left_over_or_is_refused():
    mesh = make_mesh(MeshSettings(fsdp=2, tensor=2))
    assert dict(mesh.shape) == {"data": 2, "fsdp": 2, "tensor": 2}
    with one_line_error("data=3 x fsdp=1 x tensor=1 does not fit 8 devices: .* each is one of 1, 2, 4, 8 "):
        make_mesh(MeshSettings(data=3))


@pytest.mark.parametrize("sizes", [{"data": 0}, {"tensor": -2}, {"data": -1, "fsdp": -1}])
def test_impossible_mesh_settings_are_refused(sizes):
    with pytest.raises(EndxError, match="mesh"):
        MeshSettings(**sizes)


for name in METHODS:
    find_method(name)  # which adds its rules

TOWER, LAYER = "dual_encoder/shared", "dual_encoder/shared/encoder/layers_3"
# A parameter of each rule: its path, its shape, and the mesh axis that each dimension is split over.
SPLITS = [
    (f"{TOWER}/token_embedder/embedding", (300, 32), ("tensor", "fsdp")),
    (f"{TOWER}/encoder/position_embedding", (512, 32), (None, "fsdp")),
    (f"{TOWER}/encoder/type_embedding", (2, 32), (None, "fsdp")),
    (f"{TOWER}/encoder/embedding_projection/kernel", (16, 32), ("fsdp", None)),
    (f"{TOWER}/encoder/relative_position_bias", (32, 4), (None, "tensor")),
    (f"{LAYER}/attention/query/kernel", (32, 32), ("fsdp", "tensor")),
    (f"{LAYER}/attention/key/kernel", (32, 32), ("fsdp", "tensor")),
    (f"{LAYER}/attention/value/kernel", (32, 32), ("fsdp", "tensor")),
    (f"{LAYER}/attention/query/lora_a", (32, 4), (None, None)),
    (f"{LAYER}/attention/query/bias", (32,), ("tensor",)),
    (f"{LAYER}/attention/key/bias", (32,), ("tensor",)),
    (f"{LAYER}/attention/value/bias", (32,), ("tensor",)),
    (f"{LAYER}/attention/output/kernel", (32, 32), ("tensor", "fsdp")),
    (f"{LAYER}/attention/output/bias", (32,), (None,)),
    (f"{LAYER}/mlp_up/kernel", (32, 64), ("fsdp", "tensor")),
    (f"{LAYER}/mlp_gate/kernel", (32, 64), ("fsdp", "tensor")),
    (f"{LAYER}/mlp_up/bias", (64,), ("tensor",)),
    (f"{LAYER}/mlp_down/kernel", (64, 32), ("tensor", "fsdp")),
    (f"{LAYER}/mlp_down/bias", (32,), (None,)),
    (f"{LAYER}/attention_norm/scale", (32,), (None,)),
    (f"{LAYER}/attention/query_norm/scale", (8,), (None,)),
    (f"{LAYER}/mlp_norm/bias", (32,), (None,)),
    (f"{LAYER}/input_kernel", (32, 2, 3, 16), ("fsdp", None, None, None)),
    (f"{LAYER}/recurrent_kernel", (2, 16, 3, 16), (None, None, None, None)),
    (f"{LAYER}/input_bias", (2, 3, 16), (None, None, None)),
    (f"{LAYER}/recurrent_bias", (2, 3, 16), (None, None, None)),
    (f"{TOWER}/pooling/hidden_kernel", (32, 8), ("fsdp", None)),
    (f"{TOWER}/pooling/hop_kernel", (8, 4), ("fsdp", None)),
    (f"{TOWER}/projection/bias", (6,), (None,)),
    (f"{TOWER}/projection/kernel", (32, 16), ("fsdp", None)),
    (f"{TOWER}/token_weights/weight", (300,), (None,)),
    ("dual_encoder/question/head/fcrr/hidden/kernel", (32, 8), ("fsdp", None)),
    ("dual_encoder/question/head/fcrr/hidden/bias", (8,), (None,)),
    ("dual_encoder/question/head/convrr/output/kernel", (64, 32), ("fsdp", None)),
    ("dual_encoder/question/head/convrr/output/bias", (32,), (None,)),
    ("dual_encoder/question/head/convrr/filters/kernel", (4, 2, 16), (None, None, None)),
    ("dual_encoder/question/head/convrr/filters/bias", (16,), (None,)),
    ("pair/pooler/kernel", (32, 32), ("fsdp", None)),
    ("pair/classifier/kernel", (32, 2), (None, None)),
    ("pair/pooler/bias", (32,), (None,)),
    ("pair/classifier/bias", (2,), (None,)),
    ("decoder/answer/vocabulary_kernel", (300, 32), ("tensor", "fsdp")),
    ("decoder/answer/vocabulary_bias", (300,), ("tensor",)),
    ("decoder/answer/initial/kernel", (32, 16), ("fsdp", None)),
    ("decoder/answer/reminder/bias", (16,), (None,)),
    ("deviation/question/kernel", (32, 16), ("fsdp", None)),
    ("deviation/question/bias", (16,), (None,)),
    ("log_temperature", (), ()),
    ("step", (), ()),
]


@pytest.mark.parametrize(("path", "shape", "axes"), SPLITS, ids=[path for path, _, _ in SPLITS])
def test_a_parameter_is_split_over_these_axes(path, shape, axes):
    assert partition_spec(path, shape, make_mesh(MeshSettings(fsdp=2, tensor=2))) == PartitionSpec(*axes)


def test_every_rule_has_such_a_parameter_and_a_dimension_that_does_not_divide_stays_whole():
    assert {rule_of(path) for path, _, _ in SPLITS} == set(RULES)
    mesh = make_mesh(MeshSettings(fsdp=2, tensor=2))
    assert partition_spec("token_embedder/embedding", (301, 32), mesh) == PartitionSpec(None, "fsdp")


@pytest.fixture
def table(monkeypatch):
    """The table of rules, which is as it was afterwards."""
    monkeypatch.setattr(sharding, "RULES", RULES.copy())
    yield sharding.RULES
    rule_of.cache_clear()


def test_a_method_brings_rules_of_its_own(table, monkeypatch):
    """Of parameters that no other method has: each has exactly one rule, here and in its optimizer's state."""
    mesh, path = make_mesh(MeshSettings(fsdp=2, tensor=2)), "late_interaction/expansion"
    with pytest.raises(EndxError, match=f"no sharding rule matches the parameter {path}; add one to the METHOD's"):
        partition_spec(path, (32, 64), mesh)
    own = Rule(r"late_interaction/\w+", ("fsdp", "tensor"))
    monkeypatch.setattr(methods.method, "METHODS", METHODS.copy())
    register(dataclasses.replace(find_method("dual"), name="further", sharding=(own,)))
    assert find_method("further") is find_method("further")
    assert table.count(own) == 1
    for tree in ("", "params/", "opt_state/1/mu/"):
        assert partition_spec(f"{tree}{path}", (32, 64), mesh) == PartitionSpec("fsdp", "tensor")


def test_a_rule_of_a_method_for_a_towers_parameter_is_refused(table):
    assert rule_of(f"{LAYER}/mlp_up/kernel").axes == ("fsdp", "tensor")
    sharding.add_rules([Rule(r"mlp_\w+/kernel", (None, None))])
    with pytest.raises(
        EndxError, match=r"the sharding rules .* and mlp_\\w\+/kernel all match the parameter .*/mlp_up/"
    ):
        rule_of(f"{LAYER}/mlp_up/kernel")


def test_optimizer_arrays_lie_where_their_parameter_does_or_are_replicated():
    mesh, path = make_mesh(MeshSettings(fsdp=2, tensor=2)), "encoder/layers_0/mlp_up/kernel"
    moments = partition_spec(f"opt_state/1/mu/shared/{path}", (32, 64), mesh)
    assert moments == partition_spec(f"params/shared/{path}", (32, 64), mesh)
    # Adafactor's, of other shapes than the parameter.
    for name, shape in ((f"v_row/{path}", 32), (f"v_col/{path}", 64), (f"v/{path}", 1), ("v_row/log_temperature", 1)):
        assert not any(partition_spec(f"opt_state/0/{name}", (shape,), mesh))


def test_parameters_without_a_rule_of_their_rank_are_refused():
    with pytest.raises(EndxError, match="mystery/kernel"):
        partition_spec("mystery/kernel", (2, 2), make_mesh(MeshSettings()))
    with pytest.raises(EndxError, match=r"is for 2 dimensions, and the parameter .* has the shape \(2, 3, 4\)"):
        partition_spec("encoder/layers_0/mlp_up/kernel", (2, 3, 4), make_mesh(MeshSettings()))
    with pytest.raises(EndxError, match="an axis of the sharding rule own/kernel is 'fdsp', .* did you mean 'fsdp'"):
        Rule("own/kernel", ("fdsp", None))


def test_place_and_shardings_keep_values():
    mesh = make_mesh(MeshSettings(fsdp=4, tensor=2))
    tree = {"mlp_up": {"kernel": np.arange(64.0, dtype=np.float32).reshape(8, 8)}, "step": np.int32(3)}
    placed = place(tree, state_shardings(tree, mesh))
    assert len({shard.device for shard in placed["mlp_up"]["kernel"].addressable_shards}) == 8
    assert placed["mlp_up"]["kernel"].addressable_shards[0].data.shape == (2, 4)
    np.testing.assert_array_equal(placed["mlp_up"]["kernel"], tree["mlp_up"]["kernel"])


def test_a_batch_is_split_over_the_devices_or_refused():
    mesh = make_mesh(MeshSettings(fsdp=2, tensor=2))
    array = to_global(np.arange(8), mesh, 8)
    assert array.sharding.is_equivalent_to(batch_sharding(mesh), 1)
    assert array.addressable_shards[0].data.shape == (2,)
    assert jnp.array_equal(jax.device_put(array, jax.devices()[0]), jnp.arange(8))
    np.testing.assert_array_equal(local_rows(make_mesh(MeshSettings(fsdp=2)), 16), np.arange(16))
    with pytest.raises(EndxError, match="batch of 12 does not divide over 8 devices"):
        local_rows(make_mesh(MeshSettings()), 12)


RECIPES = [
    ("quickstart", ()),
    ("minilm_pairs", ()),
    ("t5", ("large,ade",)),
    ("t5", ("xxl,sde",)),
    ("bert_large_sde", ()),
    ("endx", ("endx,lstm",)),
    ("endx", ("dual,transformer",)),
    ("yu", ("cross_vae",)),
    ("yu", ("dual_vae",)),
    ("fcrr_convrr", ()),
]


def test_every_recipe_is_listed_or_like_one_that_is():
    """Others differ from these in data or size: their parameters have the same paths."""
    alike = {
        "bert_base_sde",
        "convrr",
        "embedding_distillation",
        "endx_minilm_squad",
        "fcrr",
        "glove",
        "t5_base_ade_spl",
    }
    alike |= {"bert_qa", "distill", "gru_squad", "late", "minilm", "pairs", "minilm_squad", "multi", "vae_squad"}
    there = set(recipe_files())
    assert there == alike | {name for name, _ in RECIPES}


def parameter_shapes(name: str, arguments: tuple = (), **changes) -> dict:
    """Shapes of all parameters of a recipe's objective, by path, without weights or tokenizers."""
    config = load_recipe(name).get_config(*arguments)
    config.model.update(changes)
    settings = resolve(config)
    described = outline_tokens if settings.model.encoder else outline
    source = described(settings.model.pretrained)
    settings = dataclasses.replace(settings, model=fill_in(settings.model, source))
    model = Model(settings, {"question": source, "answer": source}, {})
    optimizer = make_optimizer(settings.optimizer, 20_000, model.abstract_params)
    return jax.eval_shape(functools.partial(TrainState.create, optimizer=optimizer), model.abstract_params)


@pytest.mark.parametrize(("name", "arguments"), RECIPES)
def test_every_array_of_a_recipes_state_has_one_rule(name, arguments):
    mesh = make_mesh(MeshSettings(fsdp=2, tensor=2))
    state_shardings(parameter_shapes(name, arguments), mesh)  # raises where no rule matches, or two


def test_the_moments_of_adam_lie_where_their_parameters_do_in_a_real_state():
    state = parameter_shapes("bert_large_sde")
    shardings = state_shardings(state, make_mesh(MeshSettings(data=1, fsdp=4, tensor=2)))
    moments = shardings.opt_state[1]
    assert moments.mu == moments.nu == shardings.params
