"""MiniLM, or another model, fine-tuned on the pairs in `data.path`, which has to be set, with prefixes.

Unlike `minilm`, it trains prefixes of the embeddings and both directions, uses larger batches, and validates during
training. On about 2,000 pairs of two domains it gained less than `minilm` (docs/results.md).
`objective.contrastive.ceiling` is off, as it changed little; try (1.0, 0.1) on data in which many right answers are not
marked.
"""

from endx_jax.methods.config import load_recipe


def get_config(width: str = "384"):
    """Returns the config: global batches of 128, epochs by the number of pairs.

    Args:
      width: width of the model's embeddings, such as 768 for all-mpnet-base-v2; its half, quarter and eighth are
        trained too.
    """
    config = load_recipe("minilm").get_config()
    whole = int(width)

    config.objective.direction = "mean"
    config.objective.matryoshka_dims = (whole, whole // 2, whole // 4, whole // 8)

    config.optimizer.warmup_steps = 100

    config.train.global_batch_size = 128
    config.train.evaluate_every = 200
    return config
