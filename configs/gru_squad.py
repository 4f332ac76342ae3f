"""A GRU from scratch on ReQA SQuAD, as in `gru_squad.py:endx`; see the recipe `gru_squad`."""

from endx_jax.methods.endx.recipes.gru_squad import get_config  # noqa: F401
