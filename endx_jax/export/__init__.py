"""Trained towers in the formats of other programs: sentence-transformers, Hugging Face, StableHLO."""
