"""ConvRR on the paragraphs of SQuAD: a convolution over frozen text vectors, `convrr:SIDE,BASE`; see `fcrr`.

RR has 1,024 filters of width 5 and stride 2, and does not state what follows them. Here 16 filters are followed by a
linear layer; models/heads.py gives the reasons.
"""

from endx_jax.methods.config import load_recipe


def get_config(arguments: str = ""):
    """Returns the config for `SIDE,BASE`, by default `question,token_table`."""
    return load_recipe("fcrr").with_heads("convrr", arguments)
