"""BERT-base as a Siamese dual encoder on ReQA SQuAD; see endx_jax/recipes/bert_base_sde.py."""

from endx_jax.recipes.bert_base_sde import get_config  # noqa: F401
