"""Dual-VAEs (Yu et al. 2020, Figure 1b): each side's GRU makes its own texts again. See `yu` for what is chosen."""

from endx_jax.recipes import yu


def get_config():
    """The config."""
    return yu.get_config("dual_vae")
