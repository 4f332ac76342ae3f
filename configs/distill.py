"""MiniLM trained on a teacher's scores of right answers and hard negatives, in `data.path`, which has to be set.

The data are a folder of `endx mine --score-with=TEACHER`, or JSONL of Tevatron or FlagEmbedding with scores. With
all-mpnet-base-v2 as teacher it took three times as long as `minilm`, and was better without BM25 on one of three sets
(docs/results.md).
"""

from endx_jax.methods.config import load_recipe


def get_config(loss: str = "listwise_kl"):
    """Returns the config: global batches of 32 questions with seven hard negatives each; epochs by the number of pairs.

    Args:
      loss: `listwise_kl`, or `margin_mse`, for which `objective.distillation.temperature` has to bring the teacher's
        margins to the range of cosines.
    """
    config = load_recipe("minilm").get_config()

    config.data.hard_negatives = 7

    config.objective.distillation.loss = loss

    config.optimizer.warmup_steps = 100

    config.train.global_batch_size = 32
    config.train.evaluate_every = 200
    return config
