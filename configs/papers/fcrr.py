"""FCRR on the paragraphs of SQuAD: two dense layers on frozen text vectors, `fcrr:SIDE,BASE` (RR, 3.2 and 4.3).

RR is "Text Embeddings for Retrieval from a Large Knowledge Base". It states: heads on the IDF-weighted mean of the
token layer's vectors, scaled to unit norm; one side trained at a time; Adam at 1e-3, weight decay 1e-3 "and/or"
dropout 0.1, batch 512, 50 to 200 "iterations". MiniLM's token table replaces ELMo's token layer. Not as in the paper:
dropout 0.5. Not stated: margin 0.2, hidden width 2,048, 400 steps, linear decay. We selected these on held-out articles
of the train file (docs/frozen-embeddings.md).
"""

from endx_jax.methods.config import base_config
from endx_jax.methods.residual import ResidualSettings
from endx_jax.settings import check_choice

# `objective.direction` by the side whose head is trained: that side is the anchor of the triplets.
SIDES = {"question": "question_to_answer", "answer": "answer_to_question", "both": "question_to_answer"}
BASES = ("token_table", "sentence")


def get_config(arguments: str = ""):
    """Returns the config for `SIDE,BASE`, by default `question,token_table`."""
    return with_heads("fcrr", arguments)


def with_heads(head: str, arguments: str):
    """Returns the config of a head for `SIDE,BASE`.

    Args:
      head: value of `objective.head.names`.
      arguments: `SIDE,BASE`. SIDE is the trained side: `question` or `answer` (paragraphs), with the other side frozen,
        or `both`. BASE is the head's input: `token_table`, the IDF-weighted mean of token vectors, or `sentence`, the
        model's sentence embeddings.
    """
    side, _, on = arguments.partition(",")
    side, on = side or "question", on or BASES[0]
    form = f"{head.replace('+', '_')}:SIDE,BASE"
    check_choice(f"SIDE of {form}", side, SIDES)
    check_choice(f"BASE of {form}", on, BASES)
    config = base_config(ResidualSettings())

    config.data.path = "squad"
    config.data.pool = "paragraphs"
    config.data.validation_fraction = 0.1

    config.model.pretrained = "all-MiniLM-L6-v2"
    if on == "token_table":
        config.data.answer_length = 512
        config.model.encoder = "none"
        config.model.token_weights = "idf"

    config.objective.direction = SIDES[side]
    config.objective.head.names = head
    config.objective.head.sides = side
    config.objective.head.width = 2048
    config.objective.head.dropout = 0.5

    config.optimizer.learning_rate = 1e-3
    config.optimizer.weight_decay = 1e-3
    config.optimizer.clip_norm = 0.0

    config.train.global_batch_size = 512
    config.train.epochs = 0.0
    config.train.steps = 400
    config.train.evaluate_every = 200
    config.train.checkpoint_every = 200

    config.evaluation.reverse = True
    return config
