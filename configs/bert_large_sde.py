"""BERT-large as a Siamese dual encoder on ReQA SQuAD; see endx_jax/recipes/bert_large_sde.py."""

from endx_jax.recipes.bert_large_sde import get_config  # noqa: F401
