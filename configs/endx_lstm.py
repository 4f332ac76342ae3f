"""ENDX with an LSTM, on ReQA SQuAD; see the recipe `endx`."""

from endx_jax.methods.endx.recipes import endx


def get_config():
    return endx.get_config("endx,lstm")
