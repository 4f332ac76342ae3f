"""Exports of trained towers: sentence-transformers and StableHLO."""
