"""Tower chunks that are chosen from the memory that is free."""

import jax
import pytest
from helpers import one_line_error
from tiny_bert import tiny_recipe

from endx_jax.experiment import prepare as preparing
from endx_jax.experiment.execution import activation_bytes, rows_at_once
from endx_jax.experiment.prepare import begin, prepare_run
from endx_jax.experiment.train_plan import plan_training
from endx_jax.parallel import MeshSettings, make_mesh
from endx_jax.parallel.memory import Memory
from endx_jax.training.step import CompiledStep

PLENTY = Memory(2**40)


@pytest.fixture(scope="module")
def run(tiny_bert, pairs_csv, tmp_path_factory):
    """A run on one device, in batches of 16 pairs, on a machine with memory to spare."""
    config = tiny_recipe(tiny_bert, pairs_csv)
    config.train.global_batch_size = 16
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preparing, "measure", lambda: PLENTY)
        patch.setattr(preparing, "make_mesh", lambda settings: make_mesh(MeshSettings(), jax.devices()[:1]))
        return prepare_run(config, tmp_path_factory.mktemp("run"))


def arranged(run, memory):
    return plan_training(run.model, run.mesh, run.stream.pairs, memory)


def rows_of(train_plan):
    return rows_at_once(train_plan.execution, 16)


def with_room_for(run, activations):
    """Memory of which half is the state and so many bytes of activations."""
    return Memory(2 * (run.train_plan.state + activations))


def test_all_rows_are_encoded_at_once_where_they_fit(run):
    assert run.train_plan.execution.tower_chunk == 0
    assert rows_of(run.train_plan) == 16


def test_chunks_shrink_to_half_of_the_free_memory(run):
    whole = run.train_plan.activations
    assert rows_of(arranged(run, with_room_for(run, whole))) == 16
    found = [arranged(run, with_room_for(run, whole * share // 16)) for share in (15, 7, 3)]
    assert [rows_of(one) for one in found] == [8, 4, 2]
    for one in found:
        assert one.expected_peak(run.model) <= one.memory.total / 2
        assert one.activations == activation_bytes(run.model, one.execution, one.stream)


def test_a_chunk_has_at_least_one_row(run):
    assert rows_of(arranged(run, with_room_for(run, 1))) == 1


def test_steps_that_do_not_fit_are_refused_before_compilation(run, monkeypatch):
    monkeypatch.setattr(preparing, "compile_ahead", lambda *_: pytest.fail("compiled"))
    run = preparing.dataclasses.replace(run, train_plan=arranged(run, Memory(1000)))
    with one_line_error("a step needs 0.0 GB of memory and 0.0 GB are free: end other programs, or set a smaller"):
        begin(run)


@pytest.mark.parametrize(("compiled", "rows"), [(1.5, 8), (1.0, 16)])
def test_chunks_are_halved_once_where_the_compiled_step_takes_more(run, monkeypatch, capsys, compiled, rows):
    bytes_of = iter([compiled, 0.5])
    budget = run.train_plan.activations
    train_plan = arranged(run, with_room_for(run, budget))
    held = train_plan.state
    monkeypatch.setattr(CompiledStep, "bytes", lambda self: held + int(compiled * budget))
    monkeypatch.setattr(preparing, "compile_ahead", lambda *_: CompiledStep({}, next(bytes_of)))
    begun, state, step = begin(preparing.dataclasses.replace(run, train_plan=train_plan))
    assert rows_of(begun.train_plan) == rows
    assert step.fallback == (0.5 if rows == 8 else 1.0)
    assert int(state.step) == 0
    assert "memory: expected peak " in capsys.readouterr().out
