"""T5 v1.1 base on ReQA SQuAD, sharing ade_fte; see the recipe `t5`."""

from endx_jax.methods.dual.recipes import t5


def get_config():
    return t5.get_config("base,ade_fte")
