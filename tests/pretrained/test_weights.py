"""Tensors from safetensors, in every layout, and their way to our trees and back."""

import json

import chex
import jax
import numpy as np
import pytest
from refusals import check_refusal
from safetensors.numpy import load_file, save_file

from endx_jax.encoders.architecture import TensorRule
from endx_jax.encoders.t5 import T5
from endx_jax.pretrained.weights import (
    SHARD_INDEX,
    SINGLE_FILE,
    modernise,
    open_tensors,
    to_ours,
    to_theirs,
)

RULES = (
    TensorRule("embed.weight", ("top/table",)),
    *(TensorRule(f"layer.{n}.dense.weight", (f"layers_{n}/kernel",), transpose=True) for n in range(12)),
    *(TensorRule(f"layer.{n}.dense.bias", (f"layers_{n}/bias",)) for n in range(12)),
)
SHAPES = {"top/table": (5, 3)} | {f"layers_{n}/kernel": (3, 4) for n in range(12)}
SHAPES |= {f"layers_{n}/bias": (4,) for n in range(12)}


def tensors() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    made = {"embed.weight": draw.normal(size=(5, 3)).astype(np.float32)}
    for layer in range(12):  # more than ten, so that sorting by text would misplace some
        made[f"layer.{layer}.dense.weight"] = draw.normal(size=(4, 3)).astype(np.float32)
        made[f"layer.{layer}.dense.bias"] = draw.normal(size=4).astype(np.float32)
    return made


def read_into_ours(folder, found):
    save_file(found, folder / SINGLE_FILE)
    ours = to_ours(modernise(open_tensors(folder), ("bert.",)), RULES, SHAPES, where="the folder")
    return jax.tree.map(np.asarray, ours)


def write_shards(folder, parts: list[dict]) -> None:
    places = {}
    for i, part in enumerate(parts):
        file = f"model-{i + 1:05d}-of-{len(parts):05d}.safetensors"
        save_file(part, folder / file)
        places |= dict.fromkeys(part, file)
    (folder / SHARD_INDEX).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": places}))


def test_a_single_file_and_shards_are_read_bit_for_bit(tmp_path):
    save_file(tensors(), tmp_path / SINGLE_FILE)
    chex.assert_trees_all_equal(open_tensors(tmp_path), tensors())
    chex.assert_trees_all_equal(load_file(tmp_path / SINGLE_FILE), tensors())  # reading does not touch the file
    (tmp_path / SINGLE_FILE).unlink()
    items = list(tensors().items())
    write_shards(tmp_path, [dict(items[:7]), dict(items[7:8]), dict(items[8:])])
    chex.assert_trees_all_equal(open_tensors(tmp_path), tensors())


@pytest.mark.parametrize("length", [0, 4, 200, -1], ids=["empty", "in the size", "in the header", "in the data"])
def test_a_truncated_file_is_named(tmp_path, length):
    file = tmp_path / SINGLE_FILE
    save_file(tensors(), file)
    file.write_bytes(file.read_bytes()[:length])
    check_refusal(lambda: open_tensors(tmp_path), f"{file} can't be read as safetensors")


def test_a_tensor_is_that_of_the_file_which_the_index_names(tmp_path):
    good, stale = np.full(2, 7, np.float32), np.zeros(2, np.float32)
    save_file({"w": stale, "u": good, "unnamed": good}, tmp_path / "a.safetensors")
    save_file({"w": good}, tmp_path / "b.safetensors")
    save_file({"w": stale}, tmp_path / "c.safetensors")
    places = {"w": "b.safetensors", "u": "a.safetensors"}
    (tmp_path / SHARD_INDEX).write_text(json.dumps({"weight_map": places}))
    chex.assert_trees_all_equal(open_tensors(tmp_path), {"w": good, "u": good})
    (tmp_path / SHARD_INDEX).write_text(json.dumps({"weight_map": places | {"u": "c.safetensors"}}))
    check_refusal(lambda: open_tensors(tmp_path), "c.safetensors", "'u'", SHARD_INDEX)
    save_file({"w": good}, tmp_path / SINGLE_FILE)  # saved anew as one file, beside the old index
    chex.assert_trees_all_equal(open_tensors(tmp_path), {"w": good})


def test_ours_are_where_the_rules_say_and_go_back_bit_for_bit(tmp_path):
    found, ours = tensors(), read_into_ours(tmp_path, tensors())
    np.testing.assert_array_equal(ours["top"]["table"], found["embed.weight"])
    np.testing.assert_array_equal(ours["layers_11"]["kernel"], found["layer.11.dense.weight"].T)
    np.testing.assert_array_equal(ours["layers_11"]["bias"], found["layer.11.dense.bias"])
    assert set(ours) == {"top", *(f"layers_{i}" for i in range(12))}
    chex.assert_trees_all_equal(to_theirs(ours, RULES), tensors())
    found = {f"bert.{name}": tensor for name, tensor in tensors().items()}
    found |= {"bert.pooler.dense.weight": np.ones((3, 3)), "cls.predictions.bias": np.ones(5)}
    chex.assert_trees_all_equal(read_into_ours(tmp_path, found), ours)  # a prefix and heads are left out


def test_a_fused_tensor_is_split_and_joined(tmp_path):
    fused = {"qkv.weight": np.arange(24, dtype=np.float32).reshape(6, 4), "qkv.bias": np.arange(6, dtype=np.float32)}
    save_file(fused, tmp_path / SINGLE_FILE)
    names = ("query", "key", "value")
    rules = (
        TensorRule("qkv.weight", tuple(f"{name}/kernel" for name in names), transpose=True),
        TensorRule("qkv.bias", tuple(f"{name}/bias" for name in names)),
    )
    shapes = {f"{name}/kernel": (4, 2) for name in names} | {f"{name}/bias": (2,) for name in names}
    found = open_tensors(tmp_path)
    ours = to_ours(found, rules, shapes, where="")
    np.testing.assert_array_equal(ours["key"]["kernel"], fused["qkv.weight"][2:4].T)
    np.testing.assert_array_equal(ours["key"]["kernel"][1:3, 1:], fused["qkv.weight"][3:4, 1:3].T)
    np.testing.assert_array_equal(ours["value"]["bias"], [4, 5])
    chex.assert_trees_all_equal(to_theirs(ours, rules), fused)
    check_refusal(lambda: to_ours(found, rules, shapes | {"query/kernel": (4, 5)}, where=""), "(6, 4)")


def test_older_spellings_become_the_newer_at_the_end_of_names_only():
    spellings = {"norm.gamma": "norm.weight", "norm.beta": "norm.bias"}
    found = modernise({"a.norm.gamma": 1, "a.norm.beta": 2, "norm.gamma.more": 3, "b": 4}, (), spellings)
    assert found == {"a.norm.weight": 1, "a.norm.bias": 2, "norm.gamma.more": 3, "b": 4}
    both = {"encoder.embed_tokens.weight": 1, "shared.weight": 2}
    assert modernise({"encoder.embed_tokens.weight": 1}, (), T5.older_spellings) == {"shared.weight": 1}
    assert modernise(both, (), T5.older_spellings) == {"shared.weight": 2}
