"""Training steps of a tiny dual encoder, compiled for a TPU: what their programs hold and what they must not."""

import dataclasses
import math
import re

import pytest
from accelerator_programs import compiled_on, devices_or_skip, faults, plan_on
from tiny_bert import tiny_recipe
from tiny_models import write_tiny_t5

from endx_jax.experiment import run as runs
from endx_jax.experiment.config import resolve
from endx_jax.experiment.prepared_run import attention_lines
from endx_jax.methods.dual import DualSettings
from endx_jax.models import stack
from endx_jax.parallel.memory import DeviceMemory
from endx_jax.parallel.mesh import make_mesh
from endx_jax.planning.compiled import trace_step
from endx_jax.planning.runs import plan_run, read_texts
from endx_jax.planning.topologies import topology_named
from endx_jax.training.compilation import abstract_batch

# No dimension of a model, and divisible by four devices; 37 rows of a device are encoded in two chunks.
BATCH, CHUNK, TILE = 148, 19, 16


def tiny(folder):
    config = tiny_recipe(folder, "none.csv")
    config.objective = dataclasses.asdict(DualSettings(loss_tile=TILE))
    config.train.global_batch_size, config.train.tower_chunk = BATCH, CHUNK
    return config


def test_a_dual_encoder(tiny_bert):
    planned, compiled = compiled_on(tiny(tiny_bert), "v5e:2x2")
    assert faults(planned, compiled) == []
    assert {one.kind for one in compiled.collectives} >= {"all-reduce"}
    assert 0 < compiled.estimate < 0.1


@pytest.mark.slow
def test_split_parameters_are_gathered_in_bfloat16(tmp_path):
    layers = stack.TPU_SCANNED_FROM
    config = tiny(write_tiny_t5(tmp_path / "deep", num_layers=layers))
    config.mesh.update(data=1, fsdp=4)
    config.train.tower_chunk = 0
    _, compiled = compiled_on(config, "v5e:2x2")
    assert not compiled.room
    gathers = [one for one in compiled.collectives if one.kind == "all-gather" and one.loops]
    assert gathers
    # Matrices of a layer in bfloat16: two sides, all layers, forward and backward.
    width, inner, mlp = 16, 8, 24
    assert sum(one.times * one.bytes for one in gathers) <= 2 * 2 * layers * 2 * (4 * width * inner + 3 * width * mlp)


@pytest.mark.slow
def test_between_slices_are_gradients_and_embeddings_alone(tmp_path):
    config = tiny(write_tiny_t5(tmp_path / "t5"))
    config.mesh.update(data=2, fsdp=4)
    config.train.tower_chunk, config.train.global_batch_size = 0, 144
    planned, compiled = compiled_on(config, "2xv5e:2x2")
    # Collectives are those of a slice. What crosses the network is sent to the host, for its runtime to exchange.
    assert {*re.findall(r"replica_groups=(\S+),", compiled.text)} == {"{{0,1,2,3}}"}
    found = re.findall(r'= \(\w+\[([\d,]*)\].* send\(.*transfer_type="(\w+)"', compiled.text)
    sent = [(kind, [int(size) for size in shape.split(",")]) for shape, kind in found]
    gradients = [math.prod(shape) for kind, shape in sent if kind == "ALL_REDUCE"]
    rows = 144 // planned.mesh.size
    assert [shape for kind, shape in sent if kind != "ALL_REDUCE"] == [[1, rows, 16], [2 * rows, 1, 128]]  # embeddings
    # A device's part of the largest parameter, the embeddings of tokens [152, 16]; dimensions are padded to 128.
    assert max(gradients) == 256 * 16 // 4


@pytest.mark.slow
def test_a_dual_encoder_on_gpus(tiny_bert):
    assert faults(*compiled_on(tiny(tiny_bert), "h200:2")) == []


def test_dropout_of_hidden_states_alone_takes_fused_attention(tiny_bert):
    config = tiny(tiny_bert)
    config.model.update(dropout=0.1, attention_dropout=0.0)
    planned = plan_on(config, "h200:2")
    assert [*attention_lines(planned)] == ["attention: fused by cuDNN"]
    assert "__cudnn$fmha" in trace_step(planned).lower().as_text()


def test_plan_and_training_lower_the_same_bytes(bert_config, tmp_path, monkeypatch):
    devices, chip = devices_or_skip("v5e:2x2"), topology_named("v5e:2x2").chip
    planned = plan_run(resolve(bert_config), read_texts(resolve(bert_config)), chip, devices=devices)

    monkeypatch.setattr(runs, "make_mesh", lambda settings: make_mesh(settings, devices))
    monkeypatch.setattr(runs, "measure", lambda: DeviceMemory(chip.memory))
    run = runs.prepare_run(bert_config, tmp_path)
    (batch,) = run.plan.stream.profiles()
    lowered = run.plan.train_step.lower(run.plan.state, abstract_batch(batch, run.plan.mesh))
    assert lowered.as_text("hlo") == trace_step(planned).lower().as_text("hlo")
