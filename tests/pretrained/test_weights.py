"""Tensors from safetensors, in every layout, and their way to our trees and back."""

import json

import chex
import ml_dtypes
import numpy as np
import pytest
from helpers import one_line_error
from safetensors.numpy import load_file, save_file

from endx_jax.pretrained.weights import (
    SHARD_INDEX,
    SINGLE_FILE,
    Rule,
    expand,
    modernise,
    read_tensors,
    to_ours,
    to_theirs,
)

RULES = (
    Rule("top/table", "embed.weight"),
    Rule("layers_{layer}/kernel", "layer.{layer}.dense.weight", transpose=True),
    Rule("layers_{layer}/bias", "layer.{layer}.dense.bias"),
)


def tensors() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    made = {"embed.weight": draw.normal(size=(5, 3)).astype(np.float32)}
    for layer in range(12):  # more than ten, so that sorting by text would misplace some
        made[f"layer.{layer}.dense.weight"] = draw.normal(size=(4, 3)).astype(np.float32)
        made[f"layer.{layer}.dense.bias"] = draw.normal(size=4).astype(np.float32)
    return made


def read_into_ours(found, **changes):
    return to_ours(found, RULES, **{"layers": 12, "prefixes": ("bert.",), "where": "the folder"} | changes)


def write_shards(folder, parts: list[dict]) -> None:
    places = {}
    for i, part in enumerate(parts):
        file = f"model-{i + 1:05d}-of-{len(parts):05d}.safetensors"
        save_file(part, folder / file)
        places |= dict.fromkeys(part, file)
    (folder / SHARD_INDEX).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": places}))


def test_a_single_file_is_read_bit_for_bit(tmp_path):
    save_file(tensors(), tmp_path / SINGLE_FILE)
    chex.assert_trees_all_equal(read_tensors(tmp_path), tensors())


def test_shards_are_read_as_the_single_file(tmp_path):
    items = list(tensors().items())
    write_shards(tmp_path, [dict(items[:7]), dict(items[7:8]), dict(items[8:])])
    chex.assert_trees_all_equal(read_tensors(tmp_path), tensors())


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64, np.int64], ids=str)
def test_other_types_become_float32(tmp_path, dtype):
    values = np.array([[1.5, -2.0, 300.0]]).astype(dtype)
    save_file({"x": values}, tmp_path / SINGLE_FILE)
    found = read_tensors(tmp_path)["x"]
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, values.astype(np.float32))


def test_a_folder_without_weights_says_what_it_lacks(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with one_line_error(r"has no model\.safetensors; only safetensors weights are supported"):
        read_tensors(tmp_path)


@pytest.mark.parametrize("length", [0, 4, 200, -1], ids=["empty", "in the size", "in the header", "in the data"])
def test_a_truncated_file_is_named(tmp_path, length):
    file = tmp_path / SINGLE_FILE
    save_file(tensors(), file)
    file.write_bytes(file.read_bytes()[:length])
    with one_line_error(rf"{file} can't be read as safetensors: "):
        read_tensors(tmp_path)


def test_a_missing_shard_is_named(tmp_path):
    write_shards(tmp_path, [tensors(), {"more": np.zeros(2, np.float32)}])
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with one_line_error("has no model-00002-of-00002.safetensors"):
        read_tensors(tmp_path)


@pytest.mark.parametrize(
    ("contents", "reason"),
    [
        ("{", ", column 2: broken JSON"),
        ("[]", " must be an object, not a list"),
        ("{}", ": no 'weight_map' among"),
        ('{"weight_map": []}', ": 'weight_map' must be an object, not a list"),
        ('{"weight_map": {"a": 5}}', ": the file of 'a' must be a string, not a whole number"),
        ('{"weight_map": {"a": "../x"}}', ": the file of 'a' is '../x', which is not in the folder of the file"),
        ('{"weight_map": {"a": "/x"}}', ": the file of 'a' is '/x', which is not in the folder of the file"),
    ],
)
def test_a_broken_index_is_named(tmp_path, contents, reason):
    (tmp_path / SHARD_INDEX).write_text(contents)
    with one_line_error(f"{SHARD_INDEX}{reason}"):
        read_tensors(tmp_path)


def test_weights_written_and_read_are_bit_equal():
    chex.assert_trees_all_equal(to_theirs(read_into_ours(tensors()), RULES, 12), tensors())


def test_ours_are_where_the_rules_say_and_transposed_where_they_say():
    found, ours = tensors(), read_into_ours(tensors())
    np.testing.assert_array_equal(ours["top"]["table"], found["embed.weight"])
    np.testing.assert_array_equal(ours["layers_11"]["kernel"], found["layer.11.dense.weight"].T)
    np.testing.assert_array_equal(ours["layers_11"]["bias"], found["layer.11.dense.bias"])
    assert set(ours) == {"top", *(f"layers_{i}" for i in range(12))}


def test_a_prefix_and_the_tensors_of_heads_are_left_out():
    found = {f"bert.{name}": tensor for name, tensor in tensors().items()}
    found |= {"bert.pooler.dense.weight": np.ones((3, 3)), "cls.predictions.bias": np.ones(5)}
    chex.assert_trees_all_equal(read_into_ours(found), read_into_ours(tensors()))


def test_a_missing_tensor_is_named():
    found = tensors()
    del found["layer.3.dense.bias"]
    with one_line_error(r"the folder: the weights have no tensor 'layer\.3\.dense\.bias'; check that config\.json"):
        read_into_ours(found)


def test_more_layers_than_there_are_is_a_missing_tensor():
    with one_line_error(r"have no tensor 'layer\.12\.dense\.weight'"):
        read_into_ours(tensors(), layers=13)


def test_older_spellings_become_the_newer_at_the_end_of_names_only():
    spellings = {"norm.gamma": "norm.weight", "norm.beta": "norm.bias"}
    found = modernise({"a.norm.gamma": 1, "a.norm.beta": 2, "norm.gamma.more": 3, "b": 4}, spellings)
    assert found == {"a.norm.weight": 1, "a.norm.bias": 2, "norm.gamma.more": 3, "b": 4}


def test_rules_are_written_out_for_every_layer():
    assert [rule.theirs for rule in expand(RULES, 2)] == [
        "embed.weight",
        "layer.0.dense.weight",
        "layer.1.dense.weight",
        "layer.0.dense.bias",
        "layer.1.dense.bias",
    ]


def test_reading_does_not_touch_the_file(tmp_path):
    save_file(tensors(), tmp_path / SINGLE_FILE)
    read_tensors(tmp_path)
    chex.assert_trees_all_equal(load_file(tmp_path / SINGLE_FILE), tensors())
