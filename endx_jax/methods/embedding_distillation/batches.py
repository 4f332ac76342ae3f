"""Batches of texts with a teacher's embeddings of them."""

from typing import Any

from endx_jax.data.batches import BatchStream, Pairs
from endx_jax.methods.dual import ContrastiveBatch, guide_of
from endx_jax.settings import check


class TaughtStream(BatchStream):
    """Stream of pairs with the embeddings of their texts by the teacher, as the `guide` of the batch."""

    def __init__(self, pairs: Pairs, settings: Any, **options):
        """Initialises the stream; `options` are those of `BatchStream`.

        Raises:
          EndxError: as `BatchStream`, or hard negatives are requested.
        """
        del settings
        check(
            not options.get("hard_negatives"),
            "objective.name=embedding_distillation compares no texts with each other: set data.hard_negatives to 0",
        )
        super().__init__(pairs, **options)

    def __getitem__(self, step: int) -> ContrastiveBatch:
        """Returns this process's rows of the batch of `step`, with NumPy leaves."""
        batch = super().__getitem__(step)
        return ContrastiveBatch(**vars(batch), guide=guide_of(self.pairs, batch))
