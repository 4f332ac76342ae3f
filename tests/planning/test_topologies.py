import pytest
from refusals import check_refusal

from endx_jax.planning.chips import CHIPS, chip_named
from endx_jax.planning.topologies import devices_of, missing_compiler, topology_named, topology_of

SLICES = {"v5e:1x1": 1, "v5e:2x4": 8, "v6e:8x8": 64, "v5p:2x2x1": 4, "v5p:2x2x4": 16, "v5p:2x4x4": 32, "h200:8": 8}


@pytest.mark.parametrize(("name", "count"), SLICES.items())
def test_slices_are_those_that_are_rented(name, count):
    topology = topology_of(chip_named(name.partition(":")[0]), count)
    assert (str(topology), topology.size) == (name, count)
    assert topology_named(name) == topology


def test_several_slices():
    topology = topology_named("2xv5p:4x4x4")
    assert (topology.slices, topology.shape, topology.size) == (2, (4, 4, 4), 128)
    assert str(topology) == "2xv5p:4x4x4"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("v5e", "--topology=v5e v5e:4x4"),
        ("v5e:16", "--topology=v5e:16 1 v5e:2x4"),
        ("2xh200:8", "H200 h200:8"),
        ("h200:12", "h200:12 --topology --devices multiples 8"),
        ("v5e:0x4", "v5e:0x4 --topology one"),
        ("v9:4x4", "--topology=v9 v4, v5e"),
    ],
)
def test_names_that_are_none(name, words):
    check_refusal(lambda: topology_named(name), *words.split())


def test_the_reason_why_a_compiler_refuses_a_topology_is_told():
    pytest.importorskip("libtpu")
    check_refusal(lambda: devices_of(topology_named("v5e:3x5")), "--topology=v5e:3x5", "not divisible")


def test_other_numbers_of_chips_are_refused_and_chips_without_a_compiler_are_named():
    check_refusal(lambda: topology_of(CHIPS["v5e"], 12), "12 v5e", "--devices")
    assert "does not know a v4 chip" in missing_compiler(CHIPS["v4"])
    assert "no bfloat16: set model.dtype=float32" in missing_compiler(CHIPS["T4"])
