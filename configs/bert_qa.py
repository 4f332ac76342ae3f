"""BERT_QA on ReQA SQuAD, a pair classifier; see the recipe `bert_qa`."""

from endx_jax.methods.pair.recipes.bert_qa import get_config  # noqa: F401
