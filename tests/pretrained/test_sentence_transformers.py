"""What sentence-transformers folders of all ages say about pooling, norm and length."""

import json
import shutil

import numpy as np
import pytest
from refusals import check_refusal
from safetensors.numpy import save_file

from endx_jax import pretrained
from endx_jax.data.tokenization import Tokenizer
from endx_jax.pretrained.sentence_transformers import POOLING_MODES, Dense, Head, Usage, read_heads, read_usage

OLD = "sentence_transformers.models."
NEW = {  # as version 6 writes them
    "Transformer": "sentence_transformers.base.modules.transformer.Transformer",
    "Pooling": "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
    "Normalize": "sentence_transformers.base.modules.normalize.Normalize",
}
FLAGS = {f"pooling_mode_{name}": name == "mean_tokens" for name in ("cls_token", "mean_tokens", "max_tokens")}
FLAGS["word_embedding_dimension"] = 32
USAGE_FILE = "config_sentence_transformers.json"


def write_head(folder, *, types, pooling, normalize=True, encoder="", limits=None) -> None:
    """Writes modules.json and what it names into `folder`; `limits` are files of the encoder."""
    paths = {"Transformer": encoder, "Pooling": "1_Pooling"} | ({"Normalize": "2_Normalize"} if normalize else {})
    named = types if isinstance(types, dict) else {name: types + name for name in paths}
    write_json(folder / "modules.json", [{"path": path, "type": named[name]} for name, path in paths.items()])
    write_json(folder / "1_Pooling" / "config.json", pooling)
    for name, contents in (limits or {}).items():
        write_json(folder / encoder / name, contents)


def read_head(folder) -> Head:
    """The head of a folder with one tower."""
    heads = read_heads(folder)
    assert heads["question"] == heads["answer"]
    return heads["question"]


def write_json(file, contents) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(contents))


def test_a_plain_folder_states_no_pooling_and_is_not_normalised(tmp_path):
    write_json(tmp_path / "config.json", {})
    assert read_head(tmp_path) == Head(tmp_path, pooling="", normalize=False, max_length=None)


@pytest.mark.parametrize("normalize", [False, True])
def test_flags_and_old_module_names(tmp_path, normalize):
    limits = {"sentence_bert_config.json": {"max_seq_length": 128, "do_lower_case": False}}
    write_head(tmp_path, types=OLD, pooling=FLAGS, normalize=normalize, limits=limits)
    assert read_head(tmp_path) == Head(tmp_path, pooling="mean", normalize=normalize, max_length=128)
    of_cls = {"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}
    write_head(tmp_path, types=OLD, pooling=FLAGS | of_cls, normalize=normalize)
    assert read_head(tmp_path).pooling == "first"


@pytest.mark.parametrize(("mode", "ours"), [*POOLING_MODES.items(), (["mean"], "mean")])
def test_modes_and_new_module_names(tmp_path, mode, ours):
    pooling = {"embedding_dimension": 32, "pooling_mode": mode, "include_prompt": True}
    write_head(tmp_path, types=NEW, pooling=pooling)
    assert read_head(tmp_path).pooling == ours


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"tokenizer_config.json": {"model_max_length": 64}}, 64),
        ({"sentence_bert_config.json": {"max_seq_length": 40}, "tokenizer_config.json": {"model_max_length": 64}}, 40),
        ({"sentence_bert_config.json": {"max_seq_length": None}, "tokenizer_config.json": {"model_max_length": 9}}, 9),
        ({"sentence_bert_config.json": {}, "tokenizer_config.json": {}}, None),
        ({"sentence_bert_config.json": {}, "sentence_xlm-roberta_config.json": {"max_seq_length": 7}}, 7),
        ({"sentence_bert_config.json": {"max_seq_length": 9, "processor_kwargs": {"model_max_length": 8}}}, 8),
        ({"sentence_bert_config.json": {"tokenizer_args": {"model_max_length": 6, "use_fast": True}}}, 6),
    ],
)
def test_the_length_limit_is_the_head_s_or_else_the_tokenizer_s(tmp_path, files, expected):
    write_head(tmp_path, types=NEW, pooling={"pooling_mode": "mean"}, limits=files)
    assert read_head(tmp_path).max_length == expected


def test_an_encoder_in_a_folder_within_is_found_with_its_tokenizer(tiny_bert, tmp_path):
    shutil.copytree(tiny_bert, tmp_path / "model" / "0_Transformer")
    limits = {"sentence_bert_config.json": {"max_seq_length": 12}}
    write_head(tmp_path / "model", types=OLD, pooling=FLAGS, encoder="0_Transformer", limits=limits)
    source = pretrained.load_encoder(str(tmp_path / "model"))
    assert source.folder == tmp_path / "model" / "0_Transformer"
    assert source.head.max_length == 12
    Tokenizer(source.folder).check_matches(source.config.vocab_size, source.folder)
    assert source.params()


def write_dense(folder, weight, **config) -> None:
    dense = {
        "in_features": 32,
        "out_features": 6,
        "bias": False,
        "activation_function": "torch.nn.modules.linear.Identity",
    }
    write_json(folder / "2_Dense" / "config.json", dense | config)
    save_file({"linear.weight": weight}, folder / "2_Dense" / "model.safetensors")
    types = ("Transformer", ""), ("Pooling", "1_Pooling"), ("Dense", "2_Dense")
    write_json(folder / "modules.json", [{"path": path, "type": OLD + kind} for kind, path in types])
    write_json(folder / "1_Pooling" / "config.json", FLAGS)


def test_a_linear_dense_is_the_projection(tmp_path):
    weight = np.arange(6 * 32, dtype=np.float32).reshape(6, 32)
    write_dense(tmp_path, weight, module_input_name="sentence_embedding", module_output_name=None)
    projection = read_head(tmp_path).projection
    assert projection == Dense(tmp_path / "2_Dense", 6)
    np.testing.assert_array_equal(projection.kernel(32), weight.T)
    check_refusal(lambda: projection.kernel(16), "2_Dense", "linear.weight", "(6, 32)", "(6, 16)")
    save_file({"weight": weight}, tmp_path / "2_Dense" / "model.safetensors")
    check_refusal(lambda: projection.kernel(32), "2_Dense", "linear.weight")


def test_several_linear_dense_are_one_and_defaults_are_bias_and_tanh(tmp_path):
    draw = np.random.default_rng(0)
    first, second = draw.normal(size=(8, 32)).astype(np.float32), draw.normal(size=(6, 8)).astype(np.float32)
    biases = [draw.normal(size=n).astype(np.float32) for n in (8, 6)]
    write_dense(tmp_path, first, out_features=8, bias=True)
    save_file({"linear.weight": first, "linear.bias": biases[0]}, tmp_path / "2_Dense" / "model.safetensors")
    write_json(tmp_path / "3_Dense" / "config.json", {"in_features": 8, "out_features": 6})
    save_file({"linear.weight": second, "linear.bias": biases[1]}, tmp_path / "3_Dense" / "model.safetensors")
    modules = json.loads((tmp_path / "modules.json").read_text())
    write_json(tmp_path / "modules.json", [*modules, {"path": "3_Dense", "type": OLD + "Dense"}])
    projection = read_head(tmp_path).projection
    assert (projection.width, projection.has_bias, projection.function) == (6, True, "tanh")
    found, pooled = projection.params(32), draw.normal(size=(3, 32))
    expected = (pooled @ first.T + biases[0]) @ second.T + biases[1]
    np.testing.assert_allclose(pooled @ found["kernel"] + found["bias"], expected, rtol=1e-5, atol=1e-5)
    write_json(tmp_path / "modules.json", [*modules[:2], {"path": "3_Dense", "type": OLD + "Dense"}, modules[2]])
    check_refusal(lambda: read_head(tmp_path), "3_Dense/config.json", "activation_function")


def test_each_side_may_have_a_length_and_lower_case_is_the_tokenizer_s_matter(tmp_path):
    own = {"max_seq_length": 32, "query_length": 16, "document_length": 48, "do_lower_case": True}
    limits = {
        "tokenizer_config.json": {"model_max_length": 60, "do_lower_case": True},
        "sentence_bert_config.json": own,
    }
    write_head(tmp_path, types=NEW, pooling={"pooling_mode": "mean"}, limits=limits)
    assert {side: head.max_length for side, head in read_heads(tmp_path).items()} == {"question": 16, "answer": 48}


@pytest.mark.parametrize(
    ("prompts", "question", "answer"),
    [
        ({"query": "q: ", "document": "d: ", "passage": "p: "}, "q: ", "d: "),
        ({"query": "q: ", "passage": "p: ", "corpus": "c: "}, "q: ", "p: "),
        ({"corpus": "c: "}, "", "c: "),
        ({"query": None, "document": "", "passage": "p: "}, "", ""),
        ({"retrieval": "r: "}, "", ""),
    ],
)
def test_prompts_of_the_sides_go_by_the_names_that_sentence_transformers_looks_for(tmp_path, prompts, question, answer):
    write_json(tmp_path / USAGE_FILE, {"prompts": prompts, "default_prompt_name": None})
    usage = read_usage(tmp_path)
    assert (usage.prompt("question"), usage.prompt("answer"), usage.default_prompt) == (question, answer, "")


def test_unknown_keys_of_a_use_are_named(tmp_path):
    write_json(tmp_path / USAGE_FILE, {"whitening": "w.npy", "__version__": {"pytorch": "2"}})
    with pytest.warns(UserWarning, match="whitening='w.npy': unknown keys are ignored, as sentence-transformers"):
        read_usage(tmp_path)


def test_prompts_and_similarity_are_read_from_the_folder(tmp_path):
    contents = {"prompts": {"query": "q: "}, "default_prompt_name": "query", "similarity_fn_name": "dot"}
    write_json(tmp_path / USAGE_FILE, contents | {"truncate_dim": 8, "model_type": "SentenceTransformer"})
    assert read_usage(tmp_path) == Usage({"query": "q: "}, "q: ", cosine=False, truncate_dim=8)
