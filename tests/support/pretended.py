"""Meshes of devices that are not here, for code that asks its mesh for the platform."""

import math

import jax
from jax.sharding import AbstractDevice, AbstractMesh

from endx_jax.parallel import MeshSettings, make_mesh


def pretended(platform: str, **axes: int) -> AbstractMesh:
    """The abstract mesh of one device of a platform, or of as many as the axes need."""
    mesh = make_mesh(MeshSettings(**axes), jax.devices()[: math.prod(axes.values())]).abstract_mesh
    return mesh.update(abstract_device=AbstractDevice(device_kind=platform, num_cores=1, platform=platform))
