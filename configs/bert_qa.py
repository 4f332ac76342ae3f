"""BERT_QA on ReQA SQuAD, a pair classifier; see endx_jax/recipes/bert_qa.py."""

from endx_jax.recipes.bert_qa import get_config  # noqa: F401
