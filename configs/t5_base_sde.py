"""T5 v1.1 base on ReQA SQuAD, sharing sde; see endx_jax/recipes/t5.py."""

from endx_jax.recipes import t5


def get_config():
    return t5.get_config("base,sde")
