"""T5 v1.1 towers of any size and sharing, as in `t5.py:small,sde`; see the recipe `t5`."""

from endx_jax.methods.dual.recipes.t5 import get_config  # noqa: F401
