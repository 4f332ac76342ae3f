"""BERT-large as a Siamese dual encoder on ReQA SQuAD: `bert_base_sde` with the larger encoder, and not tuned.

Adam's two moments and the float32 parameters of 334 million are 4 GB, so the devices share them (`mesh.fsdp`), and 24
layers are stacked, so that they compile in the time of one. See docs/large-models.md.
"""

from endx_jax.methods.dual.recipes import bert_base_sde


def get_config():
    """The config of `bert_base_sde` but for the encoder and how it is run."""
    config = bert_base_sde.get_config()

    config.model.pretrained = "google-bert/bert-large-uncased"
    config.model.scan_layers = True
    config.model.remat = "dots"

    config.mesh.data = 1
    config.mesh.fsdp = -1
    # Chunks of rows would have all parameters whole on each device at once.
    config.train.tower_chunk = 0
    return config
