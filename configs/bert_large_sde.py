"""BERT-large as a Siamese dual encoder on ReQA SQuAD; see the recipe `bert_large_sde`."""

from endx_jax.methods.dual.recipes.bert_large_sde import get_config  # noqa: F401
