"""Cross-VAEs (Yu et al. 2020): each side's GRU makes the texts of the other. See `yu` for what is chosen."""

from endx_jax.recipes import yu


def get_config():
    """The config."""
    return yu.get_config("cross_vae")
