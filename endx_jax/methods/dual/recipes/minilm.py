"""MiniLM fine-tuned on your own pairs (set `data.path`); a starting point for recipes of your own."""

from endx_jax.methods.config import base_config


def get_config():
    """Three passes over the training pairs; a tenth of the questions is held out for the final table."""
    config = base_config()
    config.model.pretrained = "all-MiniLM-L6-v2"
    config.optimizer.learning_rate = 5e-5
    config.train.epochs = 3.0
    return config
