"""MiniLM as a pair classifier on ReQA SQuAD; see the recipe `minilm_pairs`."""

from endx_jax.methods.pair.recipes.minilm_pairs import get_config  # noqa: F401
