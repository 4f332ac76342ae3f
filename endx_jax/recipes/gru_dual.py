"""Dual-GRUs (Yu et al. 2020): two GRUs matched by cosine. See `yu` for what is stated and what is chosen."""

from endx_jax.recipes import yu


def get_config():
    """The config."""
    return yu.get_config("dual")
