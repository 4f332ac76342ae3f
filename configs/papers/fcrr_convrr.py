"""ConvRR on the output of a trained and frozen FCRR: `fcrr_convrr:SIDE,BASE`; see `fcrr`.

RR does not state how "FCRR + ConvRR" are combined; this is our interpretation. The FCRR is read from the workdir
that the recipe `fcrr` has by default with the same arguments; `--config.model.init_from=WORKDIR` names another.
"""

import re

from endx_jax.methods.config import load_recipe


def get_config(arguments: str = ""):
    """Returns the config for `SIDE,BASE`, by default `question,token_table`."""
    config = load_recipe("fcrr").with_heads("fcrr+convrr", arguments)
    config.optimizer.frozen = ("head/fcrr/",)
    config.model.init_from = f"runs/{re.sub(r'[^a-z_]+', '_', f'fcrr {arguments}'.strip())}"
    return config
