"""Meshes on the topologies of real slices; nothing is compiled."""

import numpy as np
import pytest
from accelerator_programs import devices_or_skip
from jax.sharding import Mesh
from refusals import check_refusal

from endx_jax.parallel import MeshSettings, local_rows, make_mesh

SLICES = ("v5e:4x4", "v5e:8x8", "v5e:16x16", "v5p:2x2x4", "v5p:4x4x4", "v6e:4x4", "v6e:8x8")
MESHES = ({}, {"data": 1, "fsdp": -1}, {"data": 1, "fsdp": -1, "tensor": 8}, {"fsdp": 8}, {"fsdp": 4, "tensor": 2})


@pytest.mark.parametrize("name", SLICES)
def test_documented_meshes_lie_on_the_slices_that_are_rented(name, monkeypatch):
    devices = devices_or_skip(name)
    for sizes in MESHES:
        mesh = make_mesh(MeshSettings(**sizes), devices)
        assert set(mesh.devices.flat) == set(devices)
        check_rows(mesh, monkeypatch)


def test_on_several_slices_data_alone_crosses_the_network(monkeypatch):
    devices = devices_or_skip("2xv5e:4x4")
    mesh = make_mesh(MeshSettings(data=2, fsdp=8, tensor=2), devices)
    assert [{device.slice_index for device in part.flat} for part in mesh.devices] == [{0}, {1}]
    check_rows(mesh, monkeypatch)
    refused = MeshSettings(data=1, fsdp=-1)
    check_refusal(lambda: make_mesh(refused, devices), "2 slices of 16 devices", "set mesh.data=2 or a multiple")


def test_gpus_of_a_node():
    for sizes in ({}, {"data": 1, "fsdp": -1}, {"fsdp": 4, "tensor": 2}):
        assert make_mesh(MeshSettings(**sizes), devices_or_skip("h200:8")).size == 8


def check_rows(mesh, monkeypatch):
    """Each process supplies as many rows, and all together every row of the batch as often as the others."""
    size = 2 * mesh.shape["data"] * mesh.shape["fsdp"]
    by_process = {}
    for device in mesh.devices.flat:
        by_process.setdefault(device.process_index, []).append(device)
    rows = []
    for devices in by_process.values():
        monkeypatch.setattr(Mesh, "local_devices", property(lambda _, own=devices: own))
        rows.append(local_rows(mesh, size))
    assert len({len(own) for own in rows}) == 1
    assert len(set(np.bincount(np.concatenate(rows), minlength=size))) == 1
