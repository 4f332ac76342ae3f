"""What sentence-transformers folders of all ages say about pooling, norm, length, projection and prompts."""

import shutil

import numpy as np
import pytest
from helpers import write_files
from refusals import check_refusal
from tiny_modules import modules

from endx_jax import pretrained
from endx_jax.data.tokenization import Tokenizer
from endx_jax.pretrained.sentence_transformers import POOLING_MODES, Dense, Head, Usage, read_heads, read_usage

NEW = [  # as version 6 writes them
    {"path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"},
    {"path": "Pooling", "type": "sentence_transformers.sentence_transformer.modules.pooling.Pooling"},
    {"path": "Normalize", "type": "sentence_transformers.base.modules.normalize.Normalize"},
]
FLAGS = {f"pooling_mode_{name}": name == "mean_tokens" for name in ("cls_token", "mean_tokens", "max_tokens")}
FLAGS["word_embedding_dimension"] = 32
OF_CLS = FLAGS | {"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}
USAGE_FILE = "config_sentence_transformers.json"


def read_head(folder) -> Head:
    """The head of a folder with one tower."""
    heads = read_heads(folder)
    assert heads["question"] == heads["answer"]
    return heads["question"]


def own(**contents) -> dict:
    return {"sentence_bert_config.json": contents}


def of_tokenizer(**contents) -> dict:
    return {"tokenizer_config.json": contents}


def pooling(contents) -> dict:
    return {"Pooling/config.json": contents}


LOWER = {"max_seq_length": 32, "query_length": 16, "document_length": 48, "do_lower_case": True}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (pooling(FLAGS), {"pooling": "mean", "normalize": True, "max_length": None}),
        (pooling(OF_CLS) | {"modules.json": NEW[:2]}, {"pooling": "first", "normalize": False}),
        (pooling({"pooling_mode_lasttoken": True}), {"pooling": "last"}),
        (pooling({"pooling_mode_weightedmean_tokens": True}), {"pooling": "weighted_mean"}),
        *(
            (pooling({"pooling_mode": mode, "include_prompt": True}), {"pooling": ours})
            for mode, ours in POOLING_MODES.items()
        ),
        (pooling({"pooling_mode": ["mean"], "include_prompt": True}), {"pooling": "mean"}),
        (own(max_seq_length=128, do_lower_case=False), {"max_length": 128}),
        (of_tokenizer(model_max_length=64), {"max_length": 64}),
        (of_tokenizer(max_len=63), {"max_length": 63}),
        (own(max_seq_length=40) | of_tokenizer(model_max_length=64), {"max_length": 40}),
        (own(max_seq_length=None) | of_tokenizer(model_max_length=9), {"max_length": 9}),
        (own() | of_tokenizer(), {"max_length": None}),
        (own() | {"sentence_xlm-roberta_config.json": {"max_seq_length": 7}}, {"max_length": 7}),
        (own(max_seq_length=9, processor_kwargs={"model_max_length": 8}), {"max_length": 8}),
        (own(tokenizer_args={"model_max_length": 6, "use_fast": True}), {"max_length": 6}),
    ],
)
def test_what_files_say_of_a_head(tmp_path, files, expected):
    write_files(tmp_path, {"modules.json": NEW} | pooling({"pooling_mode": "mean"}) | files)
    head = read_head(tmp_path)
    assert {name: getattr(head, name) for name in expected} == expected


def test_each_side_may_have_a_length_and_lower_case_is_the_tokenizer_s_matter(tmp_path):
    files = own(**LOWER) | of_tokenizer(model_max_length=60, do_lower_case=True)
    write_files(tmp_path, {"modules.json": NEW} | pooling({"pooling_mode": "mean"}) | files)
    assert {side: head.max_length for side, head in read_heads(tmp_path).items()} == {"question": 16, "answer": 48}


def test_an_encoder_in_a_folder_within_is_found_with_its_tokenizer(tiny_bert, tmp_path):
    shutil.copytree(tiny_bert, tmp_path / "Transformer")
    files = pooling(FLAGS) | {"Transformer/sentence_bert_config.json": {"max_seq_length": 12}}
    write_files(tmp_path, {"modules.json": modules("Transformer", "Pooling", "Normalize")} | files)
    source = pretrained.load_encoder(str(tmp_path))
    assert source.folder == tmp_path / "Transformer"
    assert source.head.max_length == 12
    Tokenizer(source.folder).check_matches(source.config.vocab_size, source.folder)
    assert source.params()


def dense(name: str, weight, vector=None, **config) -> dict:
    """Files of a Dense, whose config states its sizes and `config`."""
    tensors = {"linear.weight": weight} | ({} if vector is None else {"linear.bias": vector})
    config = {"in_features": weight.shape[1], "out_features": weight.shape[0]} | config
    return {f"{name}/config.json": config, f"{name}/model.safetensors": tensors}


LINEAR = {"activation_function": "torch.nn.modules.linear.Identity"}


def test_a_linear_dense_is_the_projection(tmp_path):
    weight = np.arange(6 * 32, dtype=np.float32).reshape(6, 32)
    over = {"bias": False, "module_input_name": "sentence_embedding", "module_output_name": None}
    files = {"modules.json": modules("Transformer", "Pooling", "Dense")} | pooling(FLAGS)
    projection = read_head(write_files(tmp_path, files | dense("Dense", weight, **LINEAR, **over))).projection
    assert projection == Dense(tmp_path / "Dense", 6)
    np.testing.assert_array_equal(projection.params(32)["kernel"], weight.T)
    check_refusal(lambda: projection.params(16), "Dense", "linear.weight", "(6, 32)", "(6, 16)")
    write_files(tmp_path, {"Dense/model.safetensors": {"weight": weight}})
    check_refusal(lambda: projection.params(32), "Dense", "linear.weight")


def test_several_linear_dense_are_one_and_defaults_are_bias_and_tanh(tmp_path):
    draw = np.random.default_rng(0)
    first, second, *biases = (draw.normal(size=size).astype(np.float32) for size in ((8, 32), (6, 8), 8, 6))
    names = ("Transformer", "Pooling", "Dense", "Dense-b")
    files = dense("Dense", first, biases[0], bias=True, **LINEAR) | dense("Dense-b", second, biases[1]) | pooling(FLAGS)
    projection = read_head(write_files(tmp_path, files | {"modules.json": modules(*names)})).projection
    assert (projection.width, projection.has_bias, projection.function) == (6, True, "tanh")
    found, pooled = projection.params(32), draw.normal(size=(3, 32))
    expected = (pooled @ first.T + biases[0]) @ second.T + biases[1]
    np.testing.assert_allclose(pooled @ found["kernel"] + found["bias"], expected, rtol=1e-5, atol=1e-5)
    write_files(tmp_path, {"modules.json": modules(*names[:2], "Dense-b", "Dense")})
    check_refusal(lambda: read_head(tmp_path), "Dense-b/config.json", "activation_function")


@pytest.mark.filterwarnings("ignore:.*documents have the prompt")
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
def test_prompts_of_the_sides_go_by_their_names(tmp_path, prompts, question, answer):
    usage = read_usage(write_files(tmp_path, {USAGE_FILE: {"prompts": prompts, "default_prompt_name": None}}))
    assert (usage.prompt("question"), usage.prompt("answer"), usage.default_prompt) == (question, answer, "")


@pytest.mark.parametrize("name", ["passage", "corpus"])
def test_a_prompt_that_sentence_transformers_does_not_use_is_told_of(tmp_path, name):
    write_files(tmp_path, {USAGE_FILE: {"prompts": {"query": "q: ", name: "p: "}}})
    with pytest.warns(UserWarning, match="documents have the prompt 'p: '"):
        read_usage(tmp_path)
    assert read_usage(tmp_path, "CrossEncoder").prompt("answer") == "p: "  # of which only the default one is used


def test_unknown_keys_of_a_use_are_named(tmp_path):
    write_files(tmp_path, {USAGE_FILE: {"whitening": "w.npy", "__version__": {"pytorch": "2"}}})
    with pytest.warns(UserWarning, match="whitening='w.npy': unknown keys are ignored, as sentence-transformers"):
        read_usage(tmp_path)


def test_prompts_and_similarity_are_read_from_the_folder(tmp_path):
    contents = {"prompts": {"query": "q: "}, "default_prompt_name": "query", "similarity_fn_name": "dot"}
    contents |= {"truncate_dim": 8, "model_type": "SentenceTransformer"}
    usage = read_usage(write_files(tmp_path, {USAGE_FILE: contents}))
    assert usage == Usage({"query": "q: "}, "q: ", cosine=False, truncate_dim=8)
