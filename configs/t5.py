"""T5 v1.1 towers on ReQA SQuAD, after Dong et al. 2022: `t5.py:SIZE,SHARING`, such as `t5.py:base,ade_spl`.

Stated in the paper (opening of section 4): T5 v1.1 encoders, Adafactor at 1e-3 with linear decay to 0, batch 512,
20,000 steps, mean pooling, a projection initialised by variance scaling 1.0, cosine similarity. From the authors'
public code (t5x_retrieval): temperature 0.01, the sum of both directions, projection width 768, lengths 64 and 256,
1,000 warm-up steps, dropout 0.1, no masking of false negatives. Our own choices: the checkpoint is selected on held-out
articles of the train file; large encoders are sharded, which does not affect results (docs/large-models.md).

The published weights may have to be converted once; then set `model.pretrained` to their folder (docs/dong.md).
"""

from endx_jax.methods.config import base_config
from endx_jax.models.sharing import SHARINGS
from endx_jax.settings import check_choice

SIZES = ("small", "base", "large", "xl", "xxl")
# Sizes with 24 layers, whose parameters are sharded.
LARGE = ("large", "xl", "xxl")


def get_config(arguments: str = "base,ade_spl"):
    """Returns the config for `SIZE,SHARING`."""
    size, _, sharing = arguments.partition(",")
    check_choice("SIZE of t5:SIZE,SHARING", size, SIZES)
    check_choice("SHARING of t5:SIZE,SHARING", sharing, SHARINGS)
    config = base_config()

    config.data.path = "reqa/squad"
    config.data.pool = "answers"
    config.data.question_length = 64
    config.data.answer_length = 256
    config.data.validation_fraction = 0.1

    config.model.pretrained = f"google/t5-v1_1-{size}"
    config.model.sharing = sharing
    config.model.pooling = "mean"
    config.model.projection = 768
    config.model.dropout = 0.1
    config.model.attention_dropout = 0.1

    config.objective.temperature = 0.01
    config.objective.direction = "sum"
    config.objective.mask_false_negatives = False

    config.optimizer.name = "adafactor"
    config.optimizer.learning_rate = 1e-3
    config.optimizer.warmup_steps = 1000
    config.optimizer.weight_decay = 0.0
    config.optimizer.clip_norm = 0.0

    config.train.global_batch_size = 512
    config.train.epochs = 0.0
    config.train.steps = 20_000
    config.train.evaluate_every = 2000
    config.train.checkpoint_every = 1000
    if size in LARGE:
        config.mesh.data = 1
        config.mesh.fsdp = -1
        # Chunked towers would gather all parameters on each device at once.
        config.train.tower_chunk = 0
    return config
