"""A checkpoint is the same whatever writes it and whatever reads it: real processes, each with virtual devices."""

import pytest
from several_processes import start_program

# Draws a state, of which every process makes its part; reads a checkpoint and compares; writes the next one.
PROGRAM = """
import pathlib, sys
import jax
import numpy as np
import optax

from endx_jax.parallel import MeshSettings, distributed, make_mesh, state_shardings
from endx_jax.parallel.agreement import all_gather
from endx_jax.parallel.sharding import put
from endx_jax.training.checkpoints import Checkpoints, abstract
from endx_jax.training.step import TrainState

distributed.initialize()
workdir, step = pathlib.Path(sys.argv[1]), int(sys.argv[2])
draw = np.random.default_rng(0)
params = {  # of a transformer, by its rules
    "token_embedder": {"embedding": np.zeros((24, 16), np.float32)},
    "layers_0": {"mlp_up": {"kernel": np.zeros((16, 32), np.float32), "bias": np.zeros(32, np.float32)}},
    "projection": {"kernel": np.zeros((5, 7), np.float32)},  # divides over nothing
}
state = TrainState.create(params, optax.adam(1e-3))
filled = lambda leaf: draw.normal(size=leaf.shape).astype(leaf.dtype) if leaf.ndim else np.asarray(leaf)
expected = jax.tree.map(filled, state).replace(step=np.asarray(7, np.int32))
mesh = make_mesh(MeshSettings(fsdp=max(1, jax.device_count() // 2)))
shardings = state_shardings(state, mesh)
checkpoints = Checkpoints(workdir, keep=3, metric="mrr", report=print)
if step:
    found = checkpoints.restore(step, abstract(state, shardings))

    def compare(found, expected):
        for part in found.addressable_shards:
            np.testing.assert_array_equal(np.asarray(part.data), expected[part.index])

    jax.tree.map(compare, found, expected)
    split = [not leaf.is_fully_replicated for leaf in jax.tree.leaves(found)]
    assert any(split) == (jax.device_count() > 2)
    print("equal")
checkpoints.save(step + 1, put(expected, shardings))
checkpoints.close()
all_gather(0, "done")
"""


def run(workdir, step: int, processes: int, devices: int) -> None:
    """Reads and writes as so many processes with so many devices each."""
    started = start_program(PROGRAM, str(workdir), str(step), count=processes, JAX_NUM_CPU_DEVICES=str(devices))
    outputs = [process.communicate(timeout=300)[0] for process in started]
    assert [process.returncode for process in started] == [0] * processes
    assert [("equal" in output) for output in outputs] == [step > 0] * processes


@pytest.mark.slow
def test_a_checkpoint_moves_between_topologies_bit_for_bit(tmp_path):
    for step, (processes, devices) in enumerate([(4, 2), (1, 1), (4, 2), (2, 2), (1, 8)]):
        run(tmp_path, step, processes, devices)
