"""Towers and their parts as Flax modules."""

from endx_jax.models.bert import BertConfig, BertEncoder
from endx_jax.models.dual_encoder import SIDES, DualEncoder
from endx_jax.models.pooling import MultiHopAttention
from endx_jax.models.recurrent import RecurrentConfig, RecurrentEncoder
from endx_jax.models.t5 import T5Config, T5Encoder
from endx_jax.models.tower import Projection, TokenEmbedder, Tower

__all__ = [
    "SIDES",
    "BertConfig",
    "BertEncoder",
    "DualEncoder",
    "MultiHopAttention",
    "Projection",
    "RecurrentConfig",
    "RecurrentEncoder",
    "T5Config",
    "T5Encoder",
    "TokenEmbedder",
    "Tower",
]
