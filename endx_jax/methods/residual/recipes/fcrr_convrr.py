"""ConvRR on the output of a finished FCRR, which stays as it is: `fcrr_convrr:SIDE,BASE`; see recipes/fcrr.py.

RR does not say how its "FCRR + ConvRR" is put together; this is our reading. It begins with the workdir that the recipe
`fcrr` with the same arguments has by default; `--config.model.init_from=WORKDIR` names another.
"""

import re

from endx_jax.methods.residual.recipes import fcrr


def get_config(arguments: str = ""):
    """The config for `SIDE,BASE`: by default `question,token_table`."""
    config = fcrr.with_heads("fcrr+convrr", arguments)
    config.optimizer.frozen = ("head/fcrr/",)
    config.model.init_from = f"runs/{re.sub(r'[^a-z_]+', '_', f'fcrr {arguments}'.strip())}"
    return config
