"""Cross-VAEs of Yu et al. 2020; see the recipe `yu`."""

from endx_jax.methods.vae.recipes import yu


def get_config():
    return yu.get_config("cross_vae")
