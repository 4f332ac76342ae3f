"""Training steps of all recipes at real size, compiled for TPUs and a GPU: what must not be in their programs."""

import hashlib

import pytest
from accelerator_programs import faults, plan_on

from endx_jax.cli import train
from endx_jax.errors import EndxError
from endx_jax.methods.config import load_recipe, recipe_files
from endx_jax.models.sharing import SHARINGS
from endx_jax.planning.compiled import compile_step, trace_step

ENDX = load_recipe("endx")
RECIPES = [
    *recipe_files(),
    *(f"t5:base,{sharing}" for sharing in SHARINGS),
    *(f"endx:{method},{encoder}" for method in ENDX.METHODS for encoder in ENDX.ENCODERS),
    *(f"yu:{method}" for method in load_recipe("yu").METHODS),
]
# Recipes without faults by topology and hash of their lowered programs.
PASSED: dict[tuple[str, bytes], str] = {}


@pytest.mark.slow
@pytest.mark.parametrize("topology", ["v5e:2x2", "h200:1"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_recipes(recipe, topology):
    config, *_ = train.parse_arguments([f"--config={recipe}"])
    try:
        planned = plan_on(config, topology)
        data = planned.settings.data
        if planned.execution.loss_tile and planned.global_batch_size in (data.question_length, data.answer_length):
            config.train.global_batch_size = 96  # arrays of a tile's tokens would look like squares of the batch
            planned = plan_on(config, topology)
    except EndxError as error:
        if "is not installed" not in str(error):
            raise
        pytest.skip(str(error))
    program = topology, hashlib.sha256(trace_step(planned).lower().as_text("hlo").encode()).digest()
    if program in PASSED:
        pytest.skip(f"its program is that of {PASSED[program]}")
    assert faults(planned, compile_step(planned)) == []
    PASSED[program] = recipe
