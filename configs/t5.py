"""T5 v1.1 towers of any size and sharing, as in `t5.py:small,sde`; see endx_jax/recipes/t5.py."""

from endx_jax.recipes.t5 import get_config  # noqa: F401
