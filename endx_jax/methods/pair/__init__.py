"""Pair classifier: one BERT that reads question and answer together (a cross-encoder)."""

from endx_jax.methods.method import Method
from endx_jax.methods.pair.batches import pair_collator
from endx_jax.methods.pair.evaluator import evaluate_by_pairs, pair_scorer
from endx_jax.methods.pair.objective import PairObjective, PairSettings
from endx_jax.parallel.sharding import Rule

METHOD = Method(
    "pair",
    PairSettings,
    PairObjective,
    collator=pair_collator,
    evaluator=evaluate_by_pairs,
    pair_scorer=pair_scorer,
    sharding=(
        Rule(r"pair/pooler/kernel", ("fsdp", None)),
        Rule(r"pair/classifier/kernel", (None, None)),
        Rule(r"pair/(pooler|classifier)/bias", (None,)),
    ),
)

__all__ = ["METHOD", "PairObjective", "PairSettings"]
