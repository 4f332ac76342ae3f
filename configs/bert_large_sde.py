"""BERT-large as a Siamese dual encoder on ReQA SQuAD: `bert_base_sde` with the larger encoder, untuned.

334 million float32 parameters and Adam's two moments take 4 GB, so they are sharded over the devices (`mesh.fsdp`). See
docs/large-models.md.
"""

from endx_jax.methods.config import load_recipe


def get_config():
    """Returns the config of `bert_base_sde` with a larger encoder and sharded parameters."""
    config = load_recipe("bert_base_sde").get_config()

    config.model.pretrained = "google-bert/bert-large-uncased"

    config.mesh.data = 1
    config.mesh.fsdp = -1
    # Chunked towers would gather all parameters on each device at once.
    config.train.tower_chunk = 0
    return config
