"""Exports of trained towers: sentence-transformers, Hugging Face and StableHLO."""
