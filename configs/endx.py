"""ENDX and its dual baselines with any encoder, as in `endx.py:endx,gru`; see the recipe `endx`."""

from endx_jax.methods.endx.recipes.endx import get_config  # noqa: F401
