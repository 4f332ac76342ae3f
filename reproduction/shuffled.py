"""GRU with ENDX whose teacher reads each text beside one of another pair: a control of `gru_squad:endx_cross`.

The paper's teacher reads a question beside its own answer, which student and searcher cannot do. Here it reads it
beside the answer of the pair half a batch further, so that its embedding tells nothing of the right answer.
"""

import dataclasses

import jax
import jax.numpy as jnp

from endx_jax.batch import Batch
from endx_jax.methods.dual import contrastive_collator, embed_by_guide
from endx_jax.methods.endx import EndxObjective, EndxSettings
from endx_jax.methods.method import Method, register
from endx_jax.methods.objective import Embeddings
from endx_jax.settings import key


@dataclasses.dataclass(frozen=True)
class ShuffledSettings(EndxSettings):
    """`config.objective` of the method `endx_shuffled`: the settings of `endx`."""

    name: str = key("endx_shuffled", "Name of the method.")


class ShuffledObjective(EndxObjective):
    """Objective of ENDX with a teacher that reads mismatched pairs."""

    def embed_as_teacher(self, params: dict, batch: Batch, keys: jax.Array | None = None) -> Embeddings:
        """Returns the teacher's embeddings, each computed beside a text of the pair half a batch further."""
        half = batch.question_id.shape[0] // 2
        mismatched = dataclasses.replace(batch, answer=jax.tree.map(lambda x: jnp.roll(x, half, axis=0), batch.answer))
        embedded = super().embed_as_teacher(params, mismatched, keys)
        return Embeddings(embedded.question, jnp.roll(embedded.answer, -half, axis=0))


register(
    Method("endx_shuffled", ShuffledSettings, ShuffledObjective, collator=contrastive_collator, annotate=embed_by_guide)
)
