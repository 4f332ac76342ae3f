"""MiniLM fine-tuned on the pairs in `data.path`, which has to be set; a template for other recipes."""

from endx_jax.methods.config import base_config


def get_config():
    """Returns the config: three epochs of the training pairs; a tenth of the questions is the test set."""
    config = base_config()
    config.model.pretrained = "all-MiniLM-L6-v2"
    config.optimizer.learning_rate = 5e-5
    config.train.epochs = 3.0
    return config
