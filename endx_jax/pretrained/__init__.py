"""Where pretrained encoders come from, and their way into our parameter trees."""

from endx_jax.pretrained.checkpoint import PretrainedEncoder, load
from endx_jax.pretrained.locate import locate

__all__ = ["PretrainedEncoder", "load", "locate"]
