"""Pretrained encoders: lookup of their folders and conversion into our parameter trees."""

from endx_jax.pretrained.checkpoint import PretrainedEncoder, load_encoder, load_sides
from endx_jax.pretrained.locate import locate
from endx_jax.pretrained.token_embeddings import PretrainedTokens, load_tokens

__all__ = ["PretrainedEncoder", "PretrainedTokens", "load_encoder", "load_sides", "load_tokens", "locate"]
