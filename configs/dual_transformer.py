"""The baseline of ENDX with a two-layer Transformer, on ReQA SQuAD; see endx_jax/recipes/endx.py."""

from endx_jax.recipes import endx


def get_config():
    return endx.get_config("dual,transformer")
