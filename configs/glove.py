"""GloVe with or without IDF, as in `glove.py:plain`; see endx_jax/recipes/glove.py."""

from endx_jax.recipes.glove import get_config  # noqa: F401
