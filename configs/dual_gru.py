"""The baseline of ENDX with a GRU, on ReQA SQuAD; see the recipe `endx`."""

from endx_jax.methods.endx.recipes import endx


def get_config():
    return endx.get_config("dual,gru")
