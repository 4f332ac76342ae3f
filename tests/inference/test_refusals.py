"""Texts, arguments, models and folders that encoding and loading refuse, and the words of the line."""

import json
import shutil

import numpy as np
import pyarrow as pa
import pytest
from fake_hub import use_hub
from helpers import status_of_fork
from late_folders import FIXED, NATIVE, POOLING, write_json, write_multi_vector
from refusals import check_refusal
from safetensors.numpy import load_file, save_file
from tiny_bert import write_tiny_bert

import endx_jax
from endx_jax.files import sha256_of
from endx_jax.inference.low_latency import LowLatencyEncoder
from endx_jax.inference.merging import merge_models

TEXTS = ["the cat sat", "dog", ""]


LIST = "pass a string or a list of strings"


@pytest.mark.parametrize(
    ("sentences", "words"),
    [
        (["a", "b", None], "sentences[2] NoneType None must be a string"),
        (["a", 3.5], "sentences[1] float 3.5 must be a string"),
        ([b"a"], "sentences[0] bytes b'a' must be a string"),
        ([["a"]], "sentences[0] list ['a'] must be a string"),
        (pa.array(["a", None]), "sentences[1] NoneType None must be a string"),
        ({"text": "a"}, f"dict {LIST}"),
        (7, f"int {LIST}"),
        (b"the cat", f"bytes {LIST}"),
        ({"a"}, f"set {LIST}"),
        (pa.table({"text": ["a", "b"]}), f"Table (2, 1) {LIST} columns"),
        (np.array([["a"]]), f"ndarray (1, 1) {LIST} columns"),
        (np.array("a"), f"ndarray () {LIST}"),
    ],
)
def test_inputs_that_are_not_texts_are_named_by_their_position(plain, sentences, words):
    for encode in (plain.encode, plain.encode_query, plain.encode_document):
        check_refusal(lambda encode=encode: encode(sentences), *words.split())


NO_WIDTH = "truncate_dim whole number from 1 to 32"
NO_SIZE = "batch_size whole number from 1"


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ({"convert_to_tensor": True}, "convert_to_tensor=True NumPy arrays"),
        ({"device": "cuda:0"}, "device='cuda:0' JAX_PLATFORMS"),
        ({"output_value": "token_embeddings"}, "output_value='token_embeddings' embeddings"),
        ({"pool": {"input": None}}, "pool= one process"),
        ({"batchsize": 8}, "'batchsize' 'batch_size'"),
        ({"convert_to_tensors": True}, "'convert_to_tensors' 'convert_to_tensor'"),
        ({"prompt_name": "query"}, "'query' prompts none"),
        *(({"truncate_dim": width}, NO_WIDTH) for width in (33, 1000)),
        *(({"truncate_dim": width}, "truncate_dim whole number from 1") for width in (0, "8", [8], 2.5)),
        *(({"batch_size": size}, NO_SIZE) for size in (0, -1, 1.5, "8", True)),
    ],
)
def test_arguments_that_are_not_supported_are_named(plain, argument, words):
    for encode in (plain.encode, plain.encode_query, plain.encode_document):
        check_refusal(lambda encode=encode: encode(TEXTS, **argument), *words.split())


A, B = np.ones((8, 4)), np.ones((3, 6))


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (A, B, "4 6 same model"),
        (A, "the cat sat", "b [N, E] encode"),
        ([[1.0], [2.0, 3.0]], B, "a [N, E]"),
        (A[None], B, "a (1, 8, 4) [N, E]"),
    ],
)
def test_embeddings_that_can_not_be_compared_are_named(plain, first, second, words):
    for compare in (plain.similarity, plain.similarity_pairwise):
        check_refusal(lambda compare=compare: compare(first, second), *words.split())
    check_refusal(lambda: plain.similarity_pairwise(A, A[:3]), "8 and 3", "use similarity")


def test_what_a_model_can_not_do_is_named_with_what_it_can(plain, prompted, tmp_path):
    check_refusal(lambda: prompted.encode(TEXTS), "encode_query", "encode_document", "prompt=")
    check_refusal(lambda: prompted.encode_query("a", prompt_name="qeury"), "'qeury'", "'query'", "query, document")
    check_refusal(lambda: prompted.encode_query([], truncate_dim=1000), *NO_WIDTH.split())
    check_refusal(lambda: plain.encode_document(["a"], pool_factor=2), "pool_factor", "one vector for each text")
    folder = write_tiny_bert(tmp_path / "bert")
    tensors = load_file(folder / "model.safetensors")
    tensors["encoder.layer.0.output.LayerNorm.weight"] *= 1e6
    save_file(tensors, folder / "model.safetensors")
    model = endx_jax.load(folder)
    assert np.isfinite(model.encode(["the cat"], precision="bfloat16").astype(np.float32)).all()
    check_refusal(lambda: model.encode(["the cat"], precision="float16"), "float16", 'precision="bfloat16"')


def test_a_process_that_was_forked_after_a_load_is_refused(tiny_bert, model):
    few = LowLatencyEncoder(model.encoder, model.params)

    def check():
        for call in (lambda: endx_jax.load(tiny_bert), lambda: model.encode(TEXTS), lambda: few("answer", TEXTS)):
            check_refusal(call, "forked", "spawn")

    assert status_of_fork(check) == 0


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nobody/nothing", "nobody/nothing folder"),
        *((name, "path_or_name pass a folder or the name of a model") for name in (None, "", " ", 5, b"m", ["m"])),
    ],
)
def test_a_name_of_no_model_is_refused_with_the_ways_out(monkeypatch, name, words):
    use_hub(monkeypatch)
    check_refusal(lambda: endx_jax.load(name), *words.split())


def test_a_folder_of_no_model_is_refused_with_the_ways_out(tmp_path, bert_workdir):
    missing = tmp_path / "runs" / "first"  # a path is not looked for on the hub
    check_refusal(lambda: endx_jax.load(missing), f"{missing} does not exist", "workdir", "export", "folder")
    # A re-ranker of a family without support is not sent to `endx rerank`.
    write_json(tmp_path / "config.json", {"model_type": "deberta-v2", "architectures": ["DebertaV2ForSequence"]})
    check_refusal(lambda: endx_jax.load(tmp_path), "model_type 'deberta-v2'", "supported: bert")
    unfinished = tmp_path / "unfinished"
    shutil.copytree(bert_workdir / "model", unfinished / "model")
    (unfinished / "model" / "endx.json").unlink()
    check_refusal(lambda: endx_jax.load(unfinished), "has not ended", "run its training command again")
    write_json(unfinished / "model" / "method.json", {"name": "pair", "embeds": False})
    check_refusal(lambda: endx_jax.load(unfinished), "pair classifier")


MOVED = {path: NATIVE[path] for path in ("", "2_MultiVectorMask", "1_Dense", "3_Normalize")}
POOLED = {"modules": NATIVE | {"4_Pooling": POOLING}}
STATED = {"pool_factor": 3, "num_protected_tokens": 2, "normalize_embeddings": True, "tasks": ["document"]}


@pytest.mark.parametrize(
    ("files", "pooling", "words"),
    [
        ({"modules": MOVED}, {}, "Transformer, Dense, MultiVectorMask, Normalize, Hier supported"),
        ({"dense": {"bias": True}}, {}, "1_Dense/config.json bias= not supported"),
        ({"dense": {"activation_function": "torch.nn.modules.activation.Tanh"}}, {}, "activation_function= supported"),
        ({"dense": {"module_input_name": "sentence_embedding"}}, {}, "module_input_name= not supported"),
        ({"mask": {"skiplist_words": ["zebra"]}}, {}, "'zebra' tokenizer lacks"),
        ({"mask": {"skiplist_words": "."}}, {}, "'skiplist_words'"),
        ({"mask": {"skiplist_tasks": ["query"]}}, {}, "skiplist_tasks= not supported"),
        ({"mask": {"keep_only_token_ids": [3]}}, {}, "keep_only_token_ids= not supported"),
        ({"transformer": {"query_expansion": FIXED | {"length": None}}}, {}, "'length'"),
        ({"transformer": {"query_expansion": FIXED | {"strategy": "max"}}}, {}, "strategy= max not supported"),
        ({"usage": {"similarity_fn_name": "meanmaxsim"}}, {}, "similarity_fn_name= meanmaxsim not supported"),
        (POOLED, {"pool_factor": 0}, "'pool_factor' 0"),
        (POOLED, {"tasks": ["query"]}, "tasks= not supported"),
        (POOLED, {"distance_threshold": 0.5}, "distance_threshold"),
    ],
)
def test_a_setting_of_a_late_model_that_is_not_supported_is_named(tmp_path, files, pooling, words):
    folder = write_multi_vector(tmp_path, **files)
    if pooling:
        write_json(folder / "4_Pooling" / "config.json", STATED | pooling)
    check_refusal(lambda: endx_jax.load(str(folder)), *words.split())


def test_a_pool_factor_is_for_documents_and_at_least_one(tmp_path):
    model = endx_jax.load(write_multi_vector(tmp_path))
    check_refusal(lambda: model.encode_query(TEXTS, pool_factor=2), "pool_factor", "documents")
    check_refusal(lambda: model.encode_document(TEXTS, pool_factor=0.5), "pool_factor", "0.5", "1 or more")


@pytest.fixture(scope="module")
def merged(bert_workdir, tmp_path_factory):
    """Folders of models by what is changed in them, and one that is no model's."""
    root, folders = tmp_path_factory.mktemp("models"), {}
    described = {"same": {}, "pooled": {"pooling": "first"}, "worded": {}, "wide": {"projection": 8}}
    for name in described:
        folders[name] = shutil.copytree(bert_workdir / "model", root / name)
        about = json.loads((root / name / "endx.json").read_text())
        about["towers"] |= described[name]
        if name == "wide":
            more = {"shared/projection/kernel": np.ones((32, 8), "f4")}
            save_file(load_file(root / name / "towers.safetensors") | more, root / name / "towers.safetensors")
            about["weights_sha256"] = sha256_of(root / name / "towers.safetensors")
        write_json(root / name / "endx.json", about)
    for file in folders["worded"].rglob("tokenizer.json"):
        file.write_text(file.read_text().replace('"lowercase": true', '"lowercase": false'))
    (root / "mine").mkdir()
    return root


@pytest.mark.parametrize(
    ("models", "weights", "output", "words"),
    [
        (["same"], (), "new", "two or more"),
        (["same", "same"], [1, 1, 1], "new", "3 weights 2 models"),
        *((["same", "same"], wrong, "new", "each 0 or more") for wrong in ([0, 0], [1, -1], [1, float("nan")])),
        (["same", "pooled"], (), "new", "architecture pooling question"),
        (["same", "worded"], (), "new", "tokenizer question"),
        (["same", "wide"], (), "new", "parameters shared/projection/kernel"),
        (["same", "same"], (), "mine", "mine exists no model folder"),
    ],
)
def test_models_that_can_not_be_merged_are_named(merged, models, weights, output, words):
    paths = [str(merged / name) for name in models]
    check_refusal(lambda: merge_models(paths, merged / output, weights), *words.split())
    assert not (merged / "new").exists()
