"""MiniLM fine-tuned on the pairs in `data.path`, which has to be set; a template for other recipes."""

from endx_jax.methods.config import base_config


def get_config():
    """Returns the config: batches, epochs and warm-up by the number of pairs; a tenth of the questions for the test."""
    config = base_config()
    config.model.pretrained = "all-MiniLM-L6-v2"
    config.model.product_dtype = "auto"
    config.optimizer.learning_rate = 5e-5
    config.optimizer.warmup_steps = -1
    config.train.update(global_batch_size=0, epochs=0.0)
    return config
