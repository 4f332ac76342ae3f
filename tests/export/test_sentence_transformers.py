import json

import numpy as np
import pytest
from tiny_bert import sizes, write_tiny_bert
from tiny_models import TEXTS, embeddings, write_encoder
from tiny_modules import write_routes
from transformers import AutoConfig

import endx_jax
from endx_jax.encoders import ARCHITECTURES
from endx_jax.export.run import export
from endx_jax.export.sentence_transformers import NAME, write_sentence_transformers

HELD = ("sde", "ade", "ade_ste", "ade_spl", "t5")
# Tolerances of exports, which sentence-transformers computes where there is one.
CHECKED = [None, pytest.param(1e-5, marks=[pytest.mark.slow, pytest.mark.reference])]


@pytest.fixture(scope="module")
def written(export_with):
    return export_with(write_sentence_transformers)


def contents(file):
    return json.loads(file.read_text())


def kinds(folder):
    return [module["type"].rpartition(".")[2] for module in contents(folder / "modules.json")]


def test_towers_that_share_all_are_modules_in_a_row(written):
    folder = written["sde"]
    assert kinds(folder) == ["Transformer", "Pooling", "Dense", "Normalize"]
    config = contents(folder / "config_sentence_transformers.json")
    assert config["prompts"] == {"query": "what is ", "document": "a mat: "}
    assert config["similarity_fn_name"] == "cosine"
    own = contents(folder / "sentence_bert_config.json")
    assert (own["query_length"], own["document_length"]) == (24, 32)
    assert contents(folder / "tokenizer_config.json")["model_max_length"] == 32


def test_the_config_is_the_encoders_own_and_names_the_class_of_the_weights(written, tiny_bert):
    classes = {"architectures": ["BertModel"], "dtype": "float32"}
    assert contents(written["sde"] / "config.json") == contents(tiny_bert / "config.json") | classes
    assert contents(written["t5"] / "config.json")["architectures"] == ["T5EncoderModel"]


def test_what_towers_share_stands_after_the_router_and_without_a_norm_they_are_compared_by_inner_product(written):
    shared, own, plain = written["ade_spl"], written["ade"], written["ade_ste"]
    assert [kinds(folder) for folder in (shared, own, plain)] == [
        ["Router", "Dense", "Normalize"], ["Router", "Normalize"], ["Router"],
    ]  # fmt: skip
    assert contents(shared / "router_config.json")["structure"] == {
        "query": ["query_0_Transformer", "query_1_Pooling"],
        "document": ["document_0_Transformer", "document_1_Pooling"],
    }
    assert contents(own / "router_config.json")["structure"]["document"][2] == "document_2_Dense"
    for side, length in (("document", 40), ("query", 24)):
        assert contents(shared / f"{side}_0_Transformer" / "tokenizer_config.json")["model_max_length"] == length
    assert contents(plain / "config_sentence_transformers.json")["similarity_fn_name"] == "dot"


@pytest.mark.parametrize("name", HELD)
def test_endx_jax_reads_it_back(written, models, expected, name):
    model = endx_jax.load(written[name])
    assert model.identity == models[name].identity
    if name == "ade_spl":  # one is enough: an identity has weights, lengths and prompts
        for side, found in embeddings(model).items():
            np.testing.assert_allclose(found, expected[name][side], atol=1e-6)


# Configs with the keys of code on the hub, by the family of transformers that they are, and some of their keys there.
CODE = {"auto_map": {"AutoConfig": "configuration.Config", "AutoModel": "modeling.Model"}, "vocab_size": 152}
NEW = sizes(24, 2, 2, 40, 64) | {"model_type": "new", "rope_theta": 20000, "type_vocab_size": 0, "pack_qkv": True}
NOMIC = {"n_embd": 24, "n_layer": 2, "n_head": 2, "n_inner": 40, "n_positions": 64, "activation_function": "swiglu"}
ON_THE_HUB = {
    "gte": (
        CODE | NEW | {"rope_scaling": {"type": "ntk", "factor": 8.0}},
        {"num_hidden_layers": 2, "rope_parameters": {"rope_theta": 160_000.0, "rope_type": "linear"}},
    ),
    "nomic_bert": (
        CODE | NOMIC | {"model_type": "nomic_bert", "rotary_emb_base": 500, "layer_norm_epsilon": 1e-3},
        {"hidden_act": "silu", "layer_norm_eps": 1e-3, "rope_parameters": {"rope_theta": 500.0}},
    ),
}


@pytest.mark.filterwarnings("ignore:.*states no pooling")
@pytest.mark.parametrize("family", ON_THE_HUB)
@pytest.mark.parametrize("tolerance", CHECKED)
def test_configs_of_code_on_the_hub_are_exported_in_the_notation_of_transformers(tmp_path, family, tolerance):
    config, expected = ON_THE_HUB[family]
    model = endx_jax.load(write_encoder(tmp_path / "model", ARCHITECTURES[config["model_type"]], config))
    assert bool(export(model, NAME, tmp_path / "out", tolerance).passed) == bool(tolerance)
    assert endx_jax.load(tmp_path / "out").identity == model.identity
    read = AutoConfig.from_pretrained(tmp_path / "out")
    assert (read.model_type, read.hidden_size, read.max_position_embeddings) == (family, 24, 64)
    for key, value in expected.items():
        found = getattr(read, key)
        assert (found | value if isinstance(value, dict) else value) == found


# The modules of questions and of documents.
ROUTES = [
    ("Transformer Pooling Normalize", "Transformer Pooling-cls Normalize"),
    ("Transformer Pooling-lasttoken", "Transformer-b Pooling"),
    ("Transformer Pooling Dense-6", "Transformer Pooling Dense-6-tanh"),
    ("Transformer Pooling", "Transformer-b Pooling Dense-32-tanh"),
]


@pytest.mark.parametrize("routes", ROUTES)
@pytest.mark.parametrize("tolerance", CHECKED)
def test_each_side_keeps_its_own_pooling_and_projection(tmp_path, routes, tolerance):
    model = endx_jax.load(write_routes(tmp_path / "model", *map(str.split, routes)))
    assert bool(export(model, NAME, tmp_path / "out", tolerance).passed) == bool(tolerance)
    again = embeddings(endx_jax.load(tmp_path / "out"))
    for side, right in embeddings(model).items():
        np.testing.assert_allclose(again[side], right, atol=1e-6)


@pytest.mark.reference
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", HELD)
def test_sentence_transformers_makes_the_same_embeddings(written, expected, name):
    import sentence_transformers as library

    model = library.SentenceTransformer(str(written[name]), device="cpu")
    np.testing.assert_allclose(model.encode_query(TEXTS), expected[name]["question"], atol=1e-5)
    np.testing.assert_allclose(model.encode_document(TEXTS), expected[name]["answer"], atol=1e-5)
    if kinds(written[name])[0] == "Router":
        with pytest.raises(ValueError, match="Could not determine route"):
            model.encode(TEXTS)


def test_truncation_is_a_default_of_the_export_alone(models, tmp_path):
    export(models["ade_spl"], NAME, tmp_path, truncate_dim=3)
    assert "only the first 3 dimensions" in (tmp_path / "README.md").read_text()
    found = endx_jax.load(tmp_path)
    whole = models["ade_spl"].encode_query(TEXTS)
    np.testing.assert_allclose(found.encode_query(TEXTS), whole[:, :3], atol=1e-5)
    np.testing.assert_allclose(found.encode_query(TEXTS, truncate_dim=8), whole, atol=1e-5)


def test_named_prompts_and_the_default_one_are_kept(tmp_path):
    folder = write_tiny_bert(tmp_path / "bert")
    prompts = {"query": "ask: ", "document": "", "STS": "alike: "}
    about = {"prompts": prompts, "default_prompt_name": "STS"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(about))
    export(endx_jax.load(folder), "sentence-transformers", tmp_path / "out")
    again = endx_jax.load(tmp_path / "out")
    assert (again.named_prompts, again.default_prompt) == (prompts, "alike: ")
