"""Towers and their parts as Flax modules."""

from endx_jax.models.dual_encoder import SIDES, DualEncoder
from endx_jax.models.pooling import MultiHopAttention
from endx_jax.models.recurrent import RecurrentConfig, RecurrentEncoder
from endx_jax.models.tower import Projection, TokenEmbedder, Tower
from endx_jax.models.transformer import TransformerEncoder
from endx_jax.models.transformer_config import TransformerConfig

__all__ = [
    "SIDES",
    "DualEncoder",
    "MultiHopAttention",
    "Projection",
    "RecurrentConfig",
    "RecurrentEncoder",
    "TokenEmbedder",
    "Tower",
    "TransformerConfig",
    "TransformerEncoder",
]
