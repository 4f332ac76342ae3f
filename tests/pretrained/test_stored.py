"""Tensors that stay in their files: any part of them is the same part of the whole, bit for bit."""

import json
import pathlib

import jax
import ml_dtypes
import numpy as np
import pytest
from helpers import padded, texts, written
from jax.sharding import NamedSharding, PartitionSpec
from refusals import check_refusal
from safetensors.numpy import save_file
from several_processes import start_program
from tiny_bert import write_tokenizer

from endx_jax.encoders.t5 import T5, T5Config
from endx_jax.models import TokenEmbedder, Tower
from endx_jax.models.transformer import TransformerEncoder
from endx_jax.parallel import MeshSettings, make_mesh, put
from endx_jax.pretrained.stored import StoredArray, open_file
from endx_jax.pretrained.weights import paths, to_theirs

PARTS = [
    (slice(None), slice(None)),
    (slice(2, 5), slice(None)),
    (slice(None), slice(1, 2)),
    (slice(0, 0), slice(0, 3)),
    (slice(4, 7, 2), slice(3, None)),
]


def stored(folder: pathlib.Path, *shape: int, dtype=np.float32, name: str = "x") -> tuple[StoredArray, np.ndarray]:
    values = np.random.default_rng(0).normal(size=shape).astype(dtype)
    save_file({"before": np.zeros(3, np.float32), name: values}, folder / f"{name}.safetensors")
    return open_file(folder / f"{name}.safetensors")[name], values.astype(np.float32)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.float64, np.int32], ids=str)
def test_parts_are_those_of_the_whole(tmp_path, dtype):
    tensor, values = stored(tmp_path, 7, 5, dtype=dtype)
    assert (tensor.shape, tensor.dtype) == ((7, 5), np.float32)
    for part in PARTS:
        np.testing.assert_array_equal(tensor[part], values[part], strict=True)
        np.testing.assert_array_equal(tensor.T[part[::-1]], values.T[part[::-1]], strict=True)
    np.testing.assert_array_equal(np.asarray(tensor), values, strict=True)
    assert tensor[2:3].flags.c_contiguous
    assert tensor.T[2:3].flags.c_contiguous


def test_each_device_is_given_its_part(tmp_path):
    """`test_no_host_ever_holds_the_model` measures that no more is read."""
    tensor, values = stored(tmp_path, 8, 6)
    mesh = make_mesh(MeshSettings(fsdp=2, tensor=2))
    placed = put(tensor, NamedSharding(mesh, PartitionSpec("fsdp", "tensor")))
    np.testing.assert_array_equal(placed, values)
    assert {shard.data.shape for shard in placed.addressable_shards} == {(4, 3)}
    assert len({shard.device for shard in placed.addressable_shards}) == 8


@pytest.mark.parametrize("stored", [np.float32, ml_dtypes.bfloat16])
def test_values_may_be_read_as_bfloat16(tmp_path, stored):
    values = np.random.default_rng(0).normal(size=(6, 4)).astype(stored)
    file = tmp_path / "model.safetensors"
    save_file({"a": values}, file)
    found = open_file(file)["a"].astype("bfloat16")
    assert (found.dtype, found.T.shape) == (ml_dtypes.bfloat16, (4, 6))
    np.testing.assert_array_equal(found.T[1:3], values.astype(ml_dtypes.bfloat16).T[1:3])
    placed = put(found, NamedSharding(make_mesh(MeshSettings(fsdp=2)), PartitionSpec("fsdp")))
    np.testing.assert_array_equal(placed, values.astype(ml_dtypes.bfloat16))
    values[3, 1] = np.nan
    save_file({"a": values}, file)
    check_refusal(lambda: open_file(file)["a"].astype("bfloat16")[...], "tensor 'a' holds NaN or infinity")


def test_types_that_we_cannot_read_and_numbers_beyond_float32_are_named(tmp_path):
    header = json.dumps({"x": {"dtype": "F8_E5M2", "shape": [2], "data_offsets": [0, 2]}}).encode()
    file = written(tmp_path / "odd.safetensors", len(header).to_bytes(8, "little") + header + b"\0\0")
    check_refusal(lambda: open_file(file), "'x'", "F8_E5M2")
    save_file({"x": np.array([1.0, 1e300])}, tmp_path / "x.safetensors")
    check_refusal(lambda: np.asarray(open_file(tmp_path / "x.safetensors")["x"]), "tensor 'x' holds NaN or infinity")


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.float64], ids=str)
def test_a_tensor_that_is_not_finite_is_named(tmp_path, dtype):
    values = np.ones((7, 5), dtype)
    values[4, 2] = -np.inf
    save_file({"whole": np.ones(3, np.float32), "layer.3.weight": values}, tmp_path / "x.safetensors")
    tensors = open_file(tmp_path / "x.safetensors")
    np.testing.assert_array_equal(tensors["layer.3.weight"][:4], np.ones((4, 5)))
    for tensor in (tensors["layer.3.weight"], tensors["layer.3.weight"].T):
        check_refusal(tensor.__array__, "x.safetensors: tensor 'layer.3.weight' holds NaN", "copy the file again")


PEAK = """
import pathlib, sys
import jax
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", int(sys.argv[3]))
from endx_jax.parallel import distributed
distributed.initialize()
from endx_jax import inference
from endx_jax.parallel import MeshSettings, make_mesh, put, state_shardings
from endx_jax.pretrained import load_encoder

def memory(kind):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(kind)) * 1024

def train():
    params = load_encoder(sys.argv[1]).stored_params()
    return put(params, state_shardings(params, mesh))

def load():
    return inference.load(sys.argv[1], mesh=mesh).params

mesh = make_mesh(MeshSettings(fsdp=4, tensor=2))
jax.block_until_ready(put({"step": 0}, state_shardings({"step": jax.numpy.zeros(())}, mesh)))
before = memory("VmRSS")
pathlib.Path("/proc/self/clear_refs").write_text("5")  # the highest so far is forgotten
placed = jax.block_until_ready({"train": train, "load": load}[sys.argv[2]]())
held = sum(shard.data.nbytes for leaf in jax.tree.leaves(placed) for shard in leaf.addressable_shards)
print(held, memory("VmHWM") - before - held)
"""


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("how", ["train", "load"])
def test_no_host_ever_holds_the_model(tmp_path, how, processes):
    folder, largest, size = write_large(tmp_path / "large")
    for process in start_program(PEAK, folder, how, str(8 // processes), count=processes):
        out, error = process.communicate(timeout=300)
        assert process.returncode == 0, error
        held, beside = map(int, out.split()[-2:])
        print(f"{held / 2**20:.0f} MiB placed, {beside / 2**20:.0f} beside; largest tensor {largest / 2**20:.0f} MiB")
        assert held == pytest.approx(2 * size / processes, rel=0.01)  # float32 of bfloat16
        assert beside < largest


def write_large(folder: pathlib.Path) -> tuple[str, int, int]:
    """A T5 of a gigabyte of bfloat16 in four shards: its folder, bytes of the largest tensor as float32, all bytes."""
    folder.mkdir()
    write_tokenizer(folder)
    config = {"model_type": "t5", "feed_forward_proj": "gated-gelu", "vocab_size": 65536, "d_model": 2048}
    config |= {"num_layers": 8, "num_heads": 32, "d_kv": 64, "d_ff": 5120}
    (folder / "config.json").write_text(json.dumps(config))
    shape = T5Config.from_hugging_face(config)
    tower = Tower(TokenEmbedder(shape.vocab_size, shape.width), TransformerEncoder(shape))
    like = jax.eval_shape(tower.init, jax.random.key(0), padded(texts([2]), 2))["params"]
    params = jax.tree.map(lambda leaf: np.ones(leaf.shape, ml_dtypes.bfloat16), like)
    tensors, places = to_theirs(params, T5.rules(shape, paths(params))), {}
    for shard in range(4):
        own = {name: np.ascontiguousarray(tensors[name]) for name in [*tensors][shard::4]}
        save_file(own, folder / f"model-{shard}.safetensors")
        places |= dict.fromkeys(own, f"model-{shard}.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    size = sum(tensor.nbytes for tensor in tensors.values())
    assert size > 10**9
    return str(folder), 4 * max(tensor.size for tensor in tensors.values()), size
