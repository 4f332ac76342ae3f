"""Recipes of ENDX and its baselines."""
