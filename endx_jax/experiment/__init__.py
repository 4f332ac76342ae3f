"""Runs from configs: data, model, plan and workdir; lower layers never see a config."""
