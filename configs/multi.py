"""MiniLM, or another model, trained on several sets of pairs: `data.path` and `data.mixture`, which have to be set.

It has the settings of `pairs`, but all pairs of a batch are from one set, drawn in proportion to the square root of its
size, as in GTE (Li et al. 2023).
"""

from endx_jax.methods.config import load_recipe


def get_config(width: str = "384"):
    """Returns the config of `pairs` with batches from one set each; `width` is that of the model's embeddings."""
    config = load_recipe("pairs").get_config(width)
    config.data.mixture_batches = "one_set"
    config.data.mixture_temperature = 2.0
    return config
