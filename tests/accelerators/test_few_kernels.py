"""The optimizer in a training step that is compiled for a GPU: a kernel for many parameters, not many for each."""

import jax
import pytest
from accelerator_programs import plan_on
from tiny_bert import tiny_recipe

from endx_jax.experiment.train_plan import TrainPlan
from endx_jax.planning.compiled import Compiled, compile_step
from endx_jax.planning.programs import Instruction, instructions
from endx_jax.planning.roofline import FREE


def of_the_optimizer(compiled: Compiled) -> list[Instruction]:
    """Kernels of a step that are not of the loss and its gradient."""
    kernels = [one for one in instructions(compiled.text) if not one.fusions and one.opcode not in FREE]
    return [one for one in kernels if one.source.startswith("jit(train_step)/") and "jvp" not in one.source]


@pytest.mark.slow
def test_it_has_fewer_kernels_than_parameters(tiny_bert, monkeypatch):
    config = tiny_recipe(tiny_bert, "none.csv")
    planned = plan_on(config, "h200:1")
    parameters = len(jax.tree.leaves(planned.model.abstract_params))
    joined = len(of_the_optimizer(compile_step(planned)))
    monkeypatch.setattr(TrainPlan, "joined", False)
    apart = len(of_the_optimizer(compile_step(plan_on(config, "h200:1"))))
    assert joined < parameters < apart


def test_split_parameters_are_not_joined(tiny_bert):
    config = tiny_recipe(tiny_bert, "none.csv")
    assert plan_on(config, "h200:2").joined
    config.mesh.update(data=1, fsdp=2)
    assert not plan_on(config, "h200:2").joined
