"""Training steps of the methods at tiny size, compiled for a TPU: what their programs hold and what they must not."""

import dataclasses
import math
import re

import pytest
from accelerator_programs import compiled_on, faults
from tiny_bert import tiny_recipe, write_tiny_bert
from tiny_models import write_tiny_t5

from endx_jax.methods.config import load_recipe
from endx_jax.methods.dual import DualSettings
from endx_jax.methods.endx import EndxSettings
from endx_jax.methods.late import LateSettings
from endx_jax.methods.pair import PairSettings
from endx_jax.methods.residual import HeadSettings, ResidualSettings
from endx_jax.models import stack
from endx_jax.models.sharing import SHARINGS

# No dimension of a model, and divisible by four devices; 37 rows of a device are encoded in two chunks.
BATCH, CHUNK, TILE = 148, 19, 16
OBJECTIVES = {
    "dual": DualSettings(loss_tile=TILE),
    "endx": EndxSettings(loss_tile=TILE, cross_heads=2, ramp_epochs=0.0, ramp_steps=2),
    "late": LateSettings(loss_tile=TILE),
    "pair": PairSettings(top=5, questions=8),
    "residual": ResidualSettings(head=HeadSettings(width=16), loss_tile=TILE),
    "vae": dataclasses.replace(load_recipe("vae_squad").CROSS, loss_tile=TILE, decoder_width=16),
}


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return write_tiny_bert(tmp_path_factory.mktemp("accelerators") / "bert", num_hidden_layers=1)


@pytest.fixture(scope="module")
def t5(tmp_path_factory):
    return write_tiny_t5(tmp_path_factory.mktemp("accelerators") / "t5")


@pytest.fixture
def scanned(monkeypatch):
    """Scans layers at any depth."""
    monkeypatch.setattr(stack, "TPU_SCANNED_FROM", 1)


def tiny(folder, method="dual", **model):
    config = tiny_recipe(folder, "none.csv")
    config.objective = dataclasses.asdict(OBJECTIVES[method])
    config.model.update(model)
    config.train.global_batch_size, config.train.tower_chunk = BATCH, CHUNK
    return config


def test_a_dual_encoder(bert):
    planned, compiled = compiled_on(tiny(bert), "v5e:2x2")
    assert faults(planned, compiled) == []
    assert {one.kind for one in compiled.collectives} >= {"all-reduce"}
    assert 0 < sum(compiled.roofline.values()) < sum(compiled.estimate.values()) < 0.1


@pytest.mark.slow
@pytest.mark.parametrize("sharing", [name for name in SHARINGS if name != "sde"])
def test_sharings(t5, sharing, scanned):
    assert faults(*compiled_on(tiny(t5, sharing=sharing, projection=16), "v5e:2x2")) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "model"),
    [
        ("endx", {}),
        ("vae", {"encoder": "gru", "new_encoder": {"layers": 1, "width": 16}, "projection": 16}),
        ("residual", {"encoder": "none"}),
        ("pair", {"pooling": "first", "dropout": 0.0}),
        ("late", {"pooling": "tokens", "projection": 8}),
    ],
)
def test_methods(bert, method, model):
    assert faults(*compiled_on(tiny(bert, method, **model), "v5e:2x2")) == []


@pytest.mark.slow
def test_split_parameters_are_gathered_in_bfloat16(t5, scanned):
    config = tiny(t5)
    config.mesh.update(data=1, fsdp=4)
    config.train.tower_chunk = 0
    _, compiled = compiled_on(config, "v5e:2x2")
    assert not compiled.room
    gathers = [one for one in compiled.collectives if one.kind == "all-gather" and one.loops]
    assert gathers
    # Matrices of a layer in bfloat16: two sides, two layers, forward and backward.
    width, inner, mlp = 16, 8, 24
    assert sum(one.times * one.bytes for one in gathers) <= 2 * 2 * 2 * 2 * (4 * width * inner + 3 * width * mlp)


@pytest.mark.slow
def test_between_slices_are_gradients_and_embeddings_alone(t5):
    config = tiny(t5)
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
def test_a_dual_encoder_on_gpus(bert):
    assert faults(*compiled_on(tiny(bert), "h200:2")) == []
