"""What processes agree on, with threads as processes; tests/experiment/test_processes.py has real ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from several_processes import as_processes

from endx_jax.errors import Disagreement, DiskFull, EndxError, RunInterrupted
from endx_jax.parallel import MeshSettings, make_mesh
from endx_jax.parallel.agreement import all_gather, broadcast, check_equal, check_parameters, on_primary, run_on_all


def test_a_single_process_decides_by_itself():
    assert broadcast(lambda: (1, 2), "test") == (1, 2)
    assert all_gather(object, "test") == [object]
    check_equal(lambda: pytest.fail("nothing is compared"))


def test_all_get_what_the_primary_decides(monkeypatch):
    def decide(process):
        return broadcast(lambda: {"step": process + 6, "metrics": [0.1]}, "test"), broadcast(lambda: None, "test")

    assert as_processes(monkeypatch, decide, 4) == [({"step": 6, "metrics": [0.1]}, None)] * 4
    assert as_processes(monkeypatch, lambda process: all_gather(process, "test"), 3) == [[0, 1, 2]] * 3


def test_actions_of_the_primary_run_there_only_and_may_decide_too(monkeypatch):
    ran = []

    def act(process):
        on_primary(lambda: ran.append((process, broadcast(lambda: process, "inside"))), "test")
        return [*ran]

    assert as_processes(monkeypatch, act, 3) == [[(0, 0)]] * 3


@pytest.mark.parametrize(("kind", "failing"), [(EndxError, 0), (EndxError, 2), (DiskFull, 0), (RunInterrupted, 2)])
def test_an_error_of_one_is_raised_by_all_with_its_name(monkeypatch, kind, failing):
    def act(process):
        def fail():
            if process == failing:
                raise kind("the disk is full: ä")

        (run_on_all if failing else on_primary)(fail, "test")

    errors = as_processes(monkeypatch, act, 3)
    assert [type(error) for error in errors] == [kind] * 3
    names = ["" if process == failing else f"process {failing}: " for process in range(3)]
    assert [str(error) for error in errors] == [f"{name}the disk is full: ä" for name in names]


def test_other_files_on_a_host_are_named(monkeypatch):
    def compare(process):
        check_equal(lambda: {"settings": "a", "train set": "12"[process]})

    errors = as_processes(monkeypatch, compare)
    message = "another train set than in process 0 (2 and 1): run the same command with the same files and versions"
    assert [type(error) for error in errors] == [EndxError] * 2
    assert [str(error).partition(message)[0] for error in errors] == ["process 1: ", ""]


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.int32])
@pytest.mark.parametrize("change", ["value", "order", "step", "split", "none"])
def test_other_parameters_of_a_process_are_noticed_and_no_other_split(monkeypatch, dtype, change):
    mesh = make_mesh(MeshSettings(data=2, fsdp=4))

    def check(process):
        values = np.arange(12).reshape(3, 4)
        if process and change == "value":
            values[2, 1] *= -1  # in a float this changes the sign bit alone
        if process and change == "order":
            values = values[:, ::-1]
        axis = "fsdp" if process == 1 and change == "split" else None
        table = jax.device_put(jnp.asarray(values, dtype), NamedSharding(mesh, PartitionSpec(None, axis)))
        number = jax.device_put(jnp.zeros((), jnp.float32), NamedSharding(mesh, PartitionSpec()))
        check_parameters({"a": table, "b": number}, 4 if process and change == "step" else 6)

    errors = as_processes(monkeypatch, check, 3)
    if change in ("split", "none"):
        assert errors == [None] * 3
    else:
        assert [(type(error), error.status) for error in errors] == [(Disagreement, 70)] * 3
        assert str(errors[0]).startswith("process 1 holds other parameters than process 0 (step ")
