"""Yu et al.'s systems in small on ReQA SQuAD, as in `vae_squad.py:cross_vae`; see endx_jax/recipes/vae_squad.py."""

from endx_jax.recipes.vae_squad import get_config  # noqa: F401
