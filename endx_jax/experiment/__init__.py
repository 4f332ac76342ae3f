"""Runs: from a config to a trained and evaluated model in a workdir."""
