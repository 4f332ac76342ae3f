import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec
from refusals import check_refusal

from endx_jax.experiment.config import resolve
from endx_jax.experiment.model import Model
from endx_jax.methods import METHODS, find_method, register
from endx_jax.methods.config import load_recipe, recipe_files
from endx_jax.parallel import MeshSettings, Rule, batch_sharding, local_rows, make_mesh, sharding
from endx_jax.parallel.sharding import RULES, partition_spec, rule_of, state_shardings, to_global
from endx_jax.pretrained.published import outline, outline_tokens
from endx_jax.pretrained.towers import fill_in
from endx_jax.training.optimizer import make_optimizer
from endx_jax.training.step import TrainState

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
    *((f"{LAYER}/attention/{name}/kernel", (32, 32), ("fsdp", "tensor")) for name in ("query", "key", "value")),
    *((f"{LAYER}/attention/{name}/bias", (32,), ("tensor",)) for name in ("query", "key", "value")),
    (f"{LAYER}/attention/query/lora_a", (32, 4), (None, None)),
    (f"{LAYER}/attention/output/kernel", (32, 32), ("tensor", "fsdp")),
    (f"{LAYER}/attention/output/bias", (32,), (None,)),
    *((f"{LAYER}/mlp_{name}/kernel", (32, 64), ("fsdp", "tensor")) for name in ("up", "gate")),
    (f"{LAYER}/mlp_up/bias", (64,), ("tensor",)),
    (f"{LAYER}/mlp_down/kernel", (64, 32), ("tensor", "fsdp")),
    (f"{LAYER}/mlp_down/bias", (32,), (None,)),
    (f"{LAYER}/attention_norm/scale", (32,), (None,)),
    (f"{LAYER}/attention/query_norm/scale", (8,), (None,)),
    (f"{LAYER}/mlp_norm/bias", (32,), (None,)),
    (f"{LAYER}/input_kernel", (32, 2, 3, 16), ("fsdp", None, None, None)),
    (f"{LAYER}/recurrent_kernel", (2, 16, 3, 16), (None, None, None, None)),
    *((f"{LAYER}/{name}_bias", (2, 3, 16), (None, None, None)) for name in ("input", "recurrent")),
    (f"{TOWER}/pooling/hidden_kernel", (32, 8), ("fsdp", None)),
    (f"{TOWER}/pooling/hop_kernel", (8, 4), ("fsdp", None)),
    (f"{TOWER}/projection/bias", (6,), (None,)),
    (f"{TOWER}/projection/kernel", (32, 16), ("fsdp", None)),
    (f"{TOWER}/token_weights/weight", (300,), (None,)),
    ("dual_encoder/question/head/fcrr/hidden/kernel", (32, 8), ("fsdp", None)),
    ("dual_encoder/question/head/convrr/output/kernel", (64, 32), ("fsdp", None)),
    ("dual_encoder/question/head/convrr/filters/kernel", (4, 2, 16), (None, None, None)),
    *((f"dual_encoder/question/head/fcrr/{name}/bias", (8,), (None,)) for name in ("hidden", "output", "filters")),
    ("pair/pooler/kernel", (32, 32), ("fsdp", None)),
    ("pair/classifier/kernel", (32, 2), (None, None)),
    *((f"pair/{name}/bias", (32,), (None,)) for name in ("pooler", "classifier")),
    ("decoder/answer/vocabulary_kernel", (300, 32), ("tensor", "fsdp")),
    ("decoder/answer/vocabulary_bias", (300,), ("tensor",)),
    *((f"decoder/answer/{name}/kernel", (32, 16), ("fsdp", None)) for name in ("initial", "reminder", "hidden")),
    *((f"decoder/answer/{name}/bias", (16,), (None,)) for name in ("initial", "reminder", "hidden")),
    ("deviation/question/kernel", (32, 16), ("fsdp", None)),
    ("deviation/question/bias", (16,), (None,)),
    ("teacher/cross_encoder/pooling/hop_kernel", (8, 4), ("fsdp", None)),
    ("log_temperature", (), ()),
    ("step", (), ()),
]


def test_parameters_are_split_over_these_axes_by_every_rule_and_what_does_not_divide_stays_whole():
    mesh = make_mesh(MeshSettings(fsdp=2, tensor=2))
    assert dict(mesh.shape) == {"data": 2, "fsdp": 2, "tensor": 2}  # the devices left over
    for path, shape, axes in SPLITS:
        assert partition_spec(path, shape, mesh) == PartitionSpec(*axes), path
    assert {rule_of(path) for path, _, _ in SPLITS} == set(RULES)
    assert partition_spec("token_embedder/embedding", (301, 32), mesh) == PartitionSpec(None, "fsdp")


def test_a_method_brings_rules_of_its_own():
    mesh, path = make_mesh(MeshSettings(fsdp=2, tensor=2)), "late_interaction/expansion"
    check_refusal(lambda: partition_spec(path, (32, 64), mesh), path, "METHOD")
    own = Rule(r"late_interaction/\w+", ("fsdp", "tensor"))
    register(dataclasses.replace(find_method("dual"), name="further", sharding=(own,)))
    assert find_method("further") is find_method("further")
    assert RULES.count(own) == 1
    for tree in ("", "params/", "opt_state/1/mu/"):
        assert partition_spec(f"{tree}{path}", (32, 64), mesh) == PartitionSpec("fsdp", "tensor")


def test_the_rules_of_a_method_that_nobody_looked_up_are_known():
    dataclasses.replace(find_method("dual"), name="further", sharding=(Rule("further/kernel", ("fsdp", None)),))
    assert rule_of("further/kernel").axes == ("fsdp", None)


def test_a_rule_of_a_method_for_a_towers_parameter_is_refused():
    assert rule_of(f"{LAYER}/mlp_up/kernel").axes == ("fsdp", "tensor")
    sharding.add_rules([Rule(r"mlp_\w+/kernel", (None, None))])
    check_refusal(lambda: rule_of(f"{LAYER}/mlp_up/kernel"), r"mlp_\w+/kernel", "all match", f"{LAYER}/mlp_up/kernel")


def test_optimizer_arrays_lie_where_their_parameter_does_or_are_replicated():
    mesh, path = make_mesh(MeshSettings(fsdp=2, tensor=2)), "encoder/layers_0/mlp_up/kernel"
    moments = partition_spec(f"opt_state/1/mu/shared/{path}", (32, 64), mesh)
    assert moments == partition_spec(f"params/shared/{path}", (32, 64), mesh)
    # Adafactor's, of other shapes than the parameter.
    for name, shape in ((f"v_row/{path}", 32), (f"v_col/{path}", 64), (f"v/{path}", 1), ("v_row/log_temperature", 1)):
        assert not any(partition_spec(f"opt_state/0/{name}", (shape,), mesh))


def test_a_batch_is_split_over_the_devices():
    mesh = make_mesh(MeshSettings(fsdp=2, tensor=2))
    array = to_global(np.arange(8), mesh, 8)
    assert array.sharding.is_equivalent_to(batch_sharding(mesh), 1)
    assert array.addressable_shards[0].data.shape == (2,)
    assert jnp.array_equal(jax.device_put(array, jax.devices()[0]), jnp.arange(8))
    np.testing.assert_array_equal(local_rows(make_mesh(MeshSettings(fsdp=2)), 16), np.arange(16))


RECIPES = ["quickstart", "minilm_pairs", "t5:large,ade", "t5:xxl,sde", "bert_large_sde"]
RECIPES += ["endx:endx,lstm", "endx:dual,transformer", "yu:cross_vae", "yu:dual_vae", "fcrr_convrr"]


def test_every_recipe_is_listed_or_like_one_that_is():
    alike = "bert_base_sde convrr embedding_distillation endx_minilm_squad fcrr glove t5_base_ade_spl bert_qa distill "
    alike += "gru_squad late minilm pairs minilm_squad multi vae_squad"
    assert set(recipe_files()) == {*alike.split(), *(recipe.partition(":")[0] for recipe in RECIPES)}


def state_of(recipe: str) -> TrainState:
    """Shapes of the training state of a recipe with one layer, without weights or tokenizers."""
    name, _, argument = recipe.partition(":")
    settings = resolve(load_recipe(name).get_config(*[argument] * bool(argument)))
    described = outline_tokens if settings.model.encoder else outline
    source = described(settings.model.pretrained)
    one_layer = dict.fromkeys({"num_hidden_layers", "num_layers"} & {*source.hugging_face}, 1)
    source = dataclasses.replace(source, hugging_face=source.hugging_face | one_layer)
    settings = dataclasses.replace(settings, model=fill_in(settings.model, source))
    model = Model(settings, {"question": source, "answer": source}, {})
    optimizer = make_optimizer(settings.optimizer, 20_000, model.abstract_params)
    return jax.eval_shape(functools.partial(TrainState.create, optimizer=optimizer), model.abstract_params)


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_array_of_a_recipes_state_has_one_rule_and_moments_of_adam_lie_where_their_parameters_do(recipe):
    mesh = make_mesh(MeshSettings(data=1, fsdp=4, tensor=2))
    shardings = state_shardings(state_of(recipe), mesh)  # raises where no rule matches, or two
    if recipe == "bert_large_sde":
        assert shardings.opt_state[1].mu == shardings.opt_state[1].nu == shardings.params
