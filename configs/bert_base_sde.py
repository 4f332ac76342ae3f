"""BERT-base as a Siamese dual encoder on ReQA SQuAD; see the recipe `bert_base_sde`."""

from endx_jax.methods.dual.recipes.bert_base_sde import get_config  # noqa: F401
