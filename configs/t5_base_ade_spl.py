"""T5 v1.1 base on ReQA SQuAD, as `t5:base,ade_spl`: two towers that share their projection; see the recipe `t5`."""

from endx_jax.methods.config import load_recipe


def get_config():
    """Returns the config of `t5:base,ade_spl`."""
    return load_recipe("t5").get_config("base,ade_spl")
