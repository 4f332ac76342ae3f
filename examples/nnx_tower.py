"""Differentiates a tower in a program of NNX."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import endx_jax

model = endx_jax.load("all-MiniLM-L6-v2")
towers = model.encoder.model
tower = nnx.bridge.ToNNX(towers.question)
for group, leaves in towers.tower_params(model.params, "question").items():
    setattr(tower, group, jax.tree.map(nnx.Param, leaves))

tokens = model.encoder.processors["question"](["Who wrote it?", "When?"]).pad(np.arange(2), 16)
similarity = nnx.value_and_grad(lambda tower: jnp.vdot(*tower(tokens)))
value, gradients = nnx.jit(similarity)(tower)
