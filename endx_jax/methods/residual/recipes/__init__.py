"""Recipes of the residual heads."""
