"""Recipes of the variational auto-encoders and Dual-GRUs."""
