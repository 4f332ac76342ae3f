"""Pair classifier: one BERT that reads question and answer together (a cross-encoder)."""

from endx_jax.data.batches import Pairs
from endx_jax.methods.method import Method
from endx_jax.methods.pair.batches import PairStream
from endx_jax.methods.pair.cross_encoder import load_cross_encoder
from endx_jax.methods.pair.evaluator import evaluate_by_pairs, pair_scorer
from endx_jax.methods.pair.objective import PairObjective, PairSettings
from endx_jax.parallel.sharding import Rule


def joined_batches(pairs: Pairs, settings: PairSettings, **options) -> PairStream:
    """Returns the batches of a run: each question joined with right and wrong answers."""
    return PairStream(pairs, negatives=settings.negatives, **options)


METHOD = Method(
    "pair",
    PairSettings,
    PairObjective,
    stream=joined_batches,
    evaluator=evaluate_by_pairs,
    pair_scorer=pair_scorer,
    foreign_scorer=load_cross_encoder,
    sharding=(
        Rule(r"pair/pooler/kernel", ("fsdp", None)),
        Rule(r"pair/classifier/kernel", (None, None)),
        Rule(r"pair/(pooler|classifier)/bias", (None,)),
    ),
)

__all__ = ["METHOD", "PairObjective", "PairSettings"]
