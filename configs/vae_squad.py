"""Yu et al.'s systems in small on ReQA SQuAD, as in `vae_squad.py:cross_vae`; see the recipe `vae_squad`."""

from endx_jax.methods.vae.recipes.vae_squad import get_config  # noqa: F401
