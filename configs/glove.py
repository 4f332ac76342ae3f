"""GloVe with or without IDF, as in `glove.py:plain`; see the recipe `glove`."""

from endx_jax.methods.dual.recipes.glove import get_config  # noqa: F401
