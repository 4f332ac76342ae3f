"""ConvRR on the paragraphs of SQuAD: a convolution along frozen text vectors, `convrr:SIDE,BASE`; see recipes/fcrr.py.

RR has 1,024 filters over 5 dimensions with stride 2, and does not state how their outputs are used; here there are 16,
followed by a linear layer of all outputs (methods/residual/heads.py explains why).
"""

from endx_jax.methods.residual.recipes import fcrr


def get_config(arguments: str = ""):
    """Returns the config for `SIDE,BASE`; by default `question,token_table`."""
    return fcrr.with_heads("convrr", arguments)
