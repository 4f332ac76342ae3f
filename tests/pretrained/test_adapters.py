"""Adapters in PEFT's format, against PEFT itself and by their errors."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import padded, random_params, texts
from refusals import check_refusal
from safetensors.numpy import load_file, save_file
from tiny_models import write_tiny_qwen3

from endx_jax import pretrained
from endx_jax.encoders.modernbert import MODERNBERT
from endx_jax.models import TokenEmbedder, Tower
from endx_jax.models.lora import B, LoraSettings, is_adapter, merged, with_adapters
from endx_jax.models.transformer import TransformerEncoder
from endx_jax.parallel.sharding import parameter_paths
from endx_jax.pretrained.adapters import read_adapter, read_adapters, write_adapter
from endx_jax.pretrained.settings import ModelSettings
from endx_jax.pretrained.towers import build_dual_encoder, fill_in, stored_params
from endx_jax.pretrained.weights import paths, to_theirs

LORA = LoraSettings(rank=4, alpha=6.0)
SIDES = ("question", "answer")


def towers(folder, lora=LORA):
    """The dual encoder on a folder, its sources, and its parameters with new adapters whose B is not zero."""
    source = pretrained.load_encoder(str(folder))
    settings = fill_in(ModelSettings(pretrained=str(folder), lora=lora, normalize=False, pooling="mean"), source)
    sources = dict.fromkeys(SIDES, source)
    model = build_dual_encoder(settings, sources)
    params = jax.tree.map(np.asarray, stored_params(model, settings, sources, jax.random.key(0)))
    params, draw = with_adapters(params, lora, jax.random.key(1)), np.random.default_rng(0)

    def moved(path, leaf):
        of_b = jax.tree_util.keystr(path, simple=True, separator="/").endswith(B)
        return draw.normal(0, 0.2, leaf.shape).astype(np.float32) if of_b else np.asarray(leaf)

    return model, sources, jax.tree_util.tree_map_with_path(moved, params)


def adapters_of(params, group="shared"):
    leaves = parameter_paths(params[group])
    return {path: leaf for path, leaf in leaves.items() if is_adapter(path)}


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    return write_tiny_qwen3(tmp_path_factory.mktemp("tiny") / "qwen3")


def write(folder, source_folder, lora=LORA):
    """Writes adapters with new values; returns their paths, the base and `adapter_config.json`."""
    _, sources, params = towers(source_folder, lora)
    write_adapter(folder, adapters_of(params), sources["question"], lora, "a/base", "ab")
    return {*adapters_of(params)}, sources["question"], json.loads((folder / "adapter_config.json").read_text())


@pytest.fixture
def written(decoder, tmp_path):
    write(tmp_path / "adapter", decoder)
    return tmp_path / "adapter"


def change(folder, **config):
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | config))


def test_a_written_adapter_is_read_back(written, decoder):
    _, sources, params = towers(decoder)
    expected = adapters_of(params)
    found = read_adapter(written, sources["question"], LORA, "ab")
    assert found.keys() == expected.keys()
    for path, leaf in expected.items():
        np.testing.assert_array_equal(found[path], leaf, err_msg=path)
    config = json.loads((written / "adapter_config.json").read_text())
    names = ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]
    assert (config["target_modules"], config["r"], config["base_model_name_or_path"]) == (names, 4, "a/base")
    shared = read_adapters(written, with_adapters(params, LORA, jax.random.key(9)), sources, LORA, "ab")
    np.testing.assert_array_equal(adapters_of(shared)[next(iter(expected))], next(iter(expected.values())))


def test_adapters_of_other_settings_bases_and_kinds_are_refused(written, decoder, tmp_path):
    source = pretrained.load_encoder(str(decoder))

    def read(settings=LORA, base="ab", source=source):
        return read_adapter(written, source, settings, base)

    check_refusal(lambda: read(dataclasses.replace(LORA, rank=8)), "is 4", "model.lora.rank", "is 8", "to 4")
    check_refusal(lambda: read(dataclasses.replace(LORA, alpha=32.0)), "lora_alpha", "is 6.0", "is 32.0", "to 6.0")
    check_refusal(lambda: read(base="cd"), "the adapter is of another base")
    wider = pretrained.load_encoder(str(write_tiny_qwen3(tmp_path / "wider", intermediate_size=56)))
    check_refusal(lambda: read(source=wider), "layers.0.mlp", "as an adapter of", "(56, 4)")
    shallow = pretrained.load_encoder(str(write_tiny_qwen3(tmp_path / "shallow", num_hidden_layers=1)))
    check_refusal(lambda: read(source=shallow), "'layers.1.mlp.down_proj'", "model.pretrained")
    _, sources, params = towers(decoder, dataclasses.replace(LORA, targets="attention"))
    check_refusal(lambda: read_adapters(written, params, sources, LORA, "ab"), "model.lora.targets")
    for changed, message in {
        "use_dora": (True, "use_dora=True is not supported; supported: False"),
        "peft_type": ("IA3", "peft_type='IA3' is not supported"),
        "bias": ("all", "bias='all' is not supported"),
        "init_lora_weights": ("pissa", "init_lora_weights='pissa' is not supported"),
        "layer_replication": ([[0, 2]], "layer_replication=[[0, 2]] is not supported: the key is unknown"),
        "rank_pattern": ({"q_proj": 8}, "rank_pattern is not supported: all layers must have one rank"),
    }.items():
        change(written, **{changed: message[0]})
        check_refusal(read, message[1])
        right = {"use_dora": False, "peft_type": "LORA", "bias": "none", "init_lora_weights": True}
        change(written, **{changed: right.get(changed, {})})
    read()
    weights = load_file(written / "adapter_model.safetensors")
    save_file(weights | {"base_model.model.norm.weight": np.zeros(3)}, written / "adapter_model.safetensors")
    check_refusal(read, "'norm.weight' is no adapter")
    name = "base_model.model.layers.0.mlp.up_proj.lora_B.weight"
    save_file({n: leaf for n, leaf in weights.items() if n != name}, written / "adapter_model.safetensors")
    check_refusal(read, "no tensor 'layers.0.mlp.up_proj.lora_B.weight'")


def test_an_adapter_of_fewer_layers_than_the_targets_is_refused(decoder, tmp_path):
    _, _, config = write(tmp_path, decoder, dataclasses.replace(LORA, targets="query|value"))
    assert config["target_modules"] == ["q_proj", "v_proj"]
    _, sources, params = towers(decoder)
    check_refusal(lambda: read_adapters(tmp_path, params, sources, LORA, "ab"), "model.lora.targets")


def test_what_is_wrong_with_an_adapter_is_not_blamed_on_its_base(tiny_bert, tmp_path):
    _, source, config = write(tmp_path, tiny_bert, LORA)
    assert source.architecture.pooler == "pooler.dense"  # which has the name of linear layers, and gets no adapter
    assert "encoder.layer.0.output.dense" in config["target_modules"]
    assert "dense" not in config["target_modules"]
    found, file = read_adapter(tmp_path, source, LORA, "ab"), tmp_path / "adapter_model.safetensors"
    weights, matrix = load_file(file), np.ones((4, source.config.width), np.float32)
    pooler = {f"base_model.model.pooler.dense.lora_{name}.weight": matrix for name in "AB"}
    save_file(weights | pooler, file)  # which embeddings do not use
    assert read_adapter(tmp_path, source, LORA, "ab").keys() == found.keys()
    save_file(weights | {"base_model.model.classifier.lora_A.weight": matrix}, file)
    check_refusal(lambda: read_adapter(tmp_path, source, LORA, "ab"), "adapter_model.safetensors", "'classifier'")
    one = "base_model.model.encoder.layer.0.attention.self.query.lora_A.weight"
    save_file(weights | {one: matrix[:2]}, file)
    change(tmp_path, rank_pattern={"layer.0.attention.self.query": 2})
    check_refusal(lambda: read_adapter(tmp_path, source, LORA, "ab"), "rank_pattern", "all layers must")


@pytest.mark.parametrize(("stabilized", "power"), [(False, 1), (True, 0.5)])
def test_a_matrix_of_several_layers_holds_the_adapter_of_one(tmp_path, stabilized, power):
    family = {"model_type": "modernbert"} | SMALL | {"num_hidden_layers": 1}
    (tmp_path / "config.json").write_text(json.dumps(family))
    shape = MODERNBERT.config.from_hugging_face(family)
    params = random_params(Tower(TokenEmbedder(shape.vocab_size, shape.width), TransformerEncoder(shape)), IDS)
    save_file(to_theirs(params, MODERNBERT.rules(shape, paths(params))), tmp_path / "model.safetensors")
    lora = dataclasses.replace(LORA, targets="query", rank_stabilized=stabilized)
    written, source, config = write(tmp_path / "adapter", tmp_path, lora)
    name = "layers.0.attn.Wqkv"
    assert config["rank_pattern"] == {name: 3 * 4}
    assert config["alpha_pattern"][name] / 12**power == pytest.approx(6 / 4**power)
    assert {*read_adapter(tmp_path / "adapter", source, lora, "ab")} == written  # none of keys and values


SMALL = {"vocab_size": 60, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 40}
SMALL |= {"max_position_embeddings": 32, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": None}
FAMILIES = {
    "qwen3": {"num_key_value_heads": 1, "head_dim": 8},
    "bert": {},
    "modernbert": {"cls_token_id": None, "sep_token_id": None, "local_attention": 6},
    "albert": {"embedding_size": 12},
}
IDS = padded(texts([9, 4, 1], vocab_size=60), 9)


def their_base(reference, folder):
    return reference.transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()


def their_encodings(reference, model):
    """Encodings [B, L, D] of `IDS`, zero at padding."""
    ids, mask = (reference.torch.tensor(np.asarray(array)) for array in (IDS.ids, IDS.mask))
    return model(input_ids=ids.long(), attention_mask=mask.long()).last_hidden_state * mask[..., None]


def our_encodings(model, params):
    return model.encodings(params, "question", IDS) * IDS.mask[..., None]


def assert_close(found, expected, name=""):
    expected = np.asarray(expected)
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 * np.abs(expected).max(), err_msg=name)


# PEFT reads an attribute that transformers has renamed.
of_peft = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
SCALES = np.random.default_rng(2).normal(size=(3, 9, 24)).astype(np.float32)


@pytest.mark.reference
@of_peft
@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("stabilized", [False, True])
def test_an_adapter_of_peft_computes_here_what_it_computes_there(reference, tmp_path, family, stabilized):
    import peft

    base, folder = tmp_path / "base", tmp_path / "adapter"
    reference.write(base, family, SMALL | FAMILIES[family])
    lora = dataclasses.replace(LORA, rank_stabilized=stabilized)
    targets = {
        "bert": r".*layer\.\d+.*dense|.*(query|key|value)",
        "albert": r".*albert_layers.*(query|key|value|dense|ffn.*)",
    }
    config = peft.LoraConfig(r=4, lora_alpha=6, use_rslora=stabilized, target_modules=targets.get(family, "all-linear"))
    theirs = peft.get_peft_model(their_base(reference, base), config)
    with reference.torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.2)
    theirs.save_pretrained(folder)
    model, sources, params = towers(base, lora)
    params = read_adapters(folder, params, sources, lora, "ab")
    encodings = their_encodings(reference, theirs)
    assert_close(our_encodings(model, params), encodings.detach())
    (encodings * reference.torch.tensor(SCALES)).sum().backward()
    gradients = jax.grad(lambda params: jnp.sum(our_encodings(model, params) * SCALES))(params)
    found = adapters_of(gradients)
    split = {path: leaf for path, leaf in found.items() if family != "modernbert" or "mlp_down" in path}
    gradients = {name: np.asarray(p.grad).T for name, p in theirs.named_parameters() if p.grad is not None}
    largest = max(np.abs(gradient).max() for gradient in gradients.values())
    assert split
    for path, gradient in split.items():
        twin = [name for name, value in gradients.items() if value.shape == gradient.shape]
        nearest = min(np.abs(gradients[name] - gradient).max() for name in twin)
        assert nearest < 2e-5 * largest, path


@pytest.mark.reference
@of_peft
@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_peft_computes_with_our_adapter_what_we_compute_and_merges_it_alike(reference, tmp_path, family):
    import peft

    base, folder = tmp_path / "base", tmp_path / "adapter"
    reference.write(base, family, SMALL | FAMILIES[family])
    model, sources, params = towers(base)
    write_adapter(folder, adapters_of(params), sources["question"], LORA, str(base), "ab")
    theirs = peft.PeftModel.from_pretrained(their_base(reference, base), folder)
    expected = our_encodings(model, params)
    assert_close(their_encodings(reference, theirs).detach(), expected)
    without = peft.PeftModel.from_pretrained(their_base(reference, base), folder)
    with without.disable_adapter():
        other = their_encodings(reference, without).detach()
    assert np.abs(np.asarray(other) - expected).max() > 0.01
    whole = theirs.merge_and_unload()
    assert_close(their_encodings(reference, whole).detach(), our_encodings(model, merged(params, LORA)))
    whole.save_pretrained(tmp_path / "merged")
    _, again, _ = towers(tmp_path / "merged")
    theirs = parameter_paths(again["question"].params())
    for path, leaf in parameter_paths(merged(params, LORA)["shared"]).items():
        assert_close(leaf, theirs[path], path)
