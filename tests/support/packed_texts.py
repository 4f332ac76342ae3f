"""Eight texts of 42 tokens, layouts without padding that hold them, and a small BERT with dropout."""

import dataclasses

from helpers import TINY, padded, row_keys, texts

from endx_jax.batch import Packing

LENGTHS, LENGTH = (7, 1, 12, 4, 4, 1, 9, 4), 16  # in order: 1 1 4 4 4 7 9 12
TOKENS = padded(texts(LENGTHS), LENGTH)
KEYS = row_keys(len(LENGTHS), seed=5)
EXACT = Packing(42, ((2, 1), (3, 4), (2, 9), (1, 12)))  # one text fills the widest row, five others theirs
SPARE = Packing(48, ((8, 12),))
BERT = dataclasses.replace(TINY, layers=1, dropout=0.2, attention_dropout=0.3)
