"""ENDX and its dual baselines with any encoder, as in `endx.py:endx,gru`; see endx_jax/recipes/endx.py."""

from endx_jax.recipes.endx import get_config  # noqa: F401
