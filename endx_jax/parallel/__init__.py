"""Device mesh, sharding rules, chunked execution and distributed processes."""

from endx_jax.parallel.mesh import MeshSettings, make_mesh
from endx_jax.parallel.sharding import Rule, batch_sharding, local_rows, put, state_shardings, to_global

__all__ = ["MeshSettings", "Rule", "batch_sharding", "local_rows", "make_mesh", "put", "state_shardings", "to_global"]
