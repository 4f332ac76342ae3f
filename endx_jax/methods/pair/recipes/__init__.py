"""Recipes of the pair classifier."""
