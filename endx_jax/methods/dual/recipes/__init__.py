"""Recipes of the dual encoder."""
