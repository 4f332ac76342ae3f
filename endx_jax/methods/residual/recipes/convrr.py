"""ConvRR on the paragraphs of SQuAD: a convolution along frozen text vectors, `convrr:SIDE,BASE`; see recipes/fcrr.py.

RR has 1,024 filters over 5 dimensions, 2 apart, and does not say what becomes of them; here they are 16, with a linear
layer of all that they find (models/residual.py says why).
"""

from endx_jax.methods.residual.recipes import fcrr


def get_config(arguments: str = ""):
    """The config for `SIDE,BASE`: by default `question,token_table`."""
    return fcrr.with_heads("convrr", arguments)
