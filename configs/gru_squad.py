"""A GRU from scratch on ReQA SQuAD, as in `gru_squad.py:endx`; see endx_jax/recipes/gru_squad.py."""

from endx_jax.recipes.gru_squad import get_config  # noqa: F401
