"""Two towers whose pairs are matched one by one, as the Dual-GRUs of Yu et al. 2020 (section 3.1, Eq. 6)."""

import dataclasses

import jax

from endx_jax.batch import Batch
from endx_jax.errors import EndxError
from endx_jax.losses.matching import MATCHINGS, draw_others, sampled_matching
from endx_jax.models.dropout import example_keys, fold
from endx_jax.models.dual_encoder import DualEncoder
from endx_jax.objectives.dual import UNCUT, DualObjective, DualSettings, Embeddings, at_temperature, tokens_of_rows
from endx_jax.parallel.execution import Execution
from endx_jax.settings import check, check_choice, key

Array = jax.Array

IN_BATCH = "inbatch"
MATCHES = (*MATCHINGS, IN_BATCH)


@dataclasses.dataclass(frozen=True)
class MatchingSettings(DualSettings):
    """Held in `config.objective`. Temperature and direction are those of `inbatch`; docs/vae.md has the choices."""

    name: str = key("matching", "the method")
    match: str = key("mse", "of cosines: mse, bce (Yu et al. Eq. 6), or inbatch, the softmax over the batch")
    negatives: int = key(2, "wrong answers a question that mse and bce draw from the batch (unstated; a port: 2)")

    def __post_init__(self):
        super().__post_init__()
        check_choice("objective.match", self.match, MATCHES)
        check(self.negatives > 0, f"objective.negatives is {self.negatives}; it must be positive")


@dataclasses.dataclass(frozen=True)
class MatchingObjective:
    """A dual encoder trained by matching pairs. Parameters are those of the dual objective.

    Attributes:
      model: the towers.
      settings: of the loss.
      execution: how the work of a step is cut up.
    """

    model: DualEncoder
    settings: MatchingSettings
    execution: Execution = UNCUT

    def __post_init__(self):
        check_cosines(self.model, self.settings)

    @property
    def dual(self) -> DualObjective:
        """The same towers trained by in-batch softmax."""
        return DualObjective(self.model, self.settings, self.execution)

    def init(self, key: Array, dual_encoder: dict) -> dict:
        """The objective's parameters around those of its dual encoder."""
        return self.dual.init(key, dual_encoder)

    def prepare(self, execution: Execution, steps_per_epoch: float) -> "MatchingObjective":
        """The same objective, as a run will compute it."""
        del steps_per_epoch
        return dataclasses.replace(self, execution=execution)

    def __call__(self, params: dict, batch: Batch, rng: Array, step: Array) -> tuple[Array, dict[str, Array]]:
        """The loss of one global batch, and what to log: see `DualObjective`.

        The metrics are those of `match`, and `orthogonality_penalty` where it has a weight.
        """
        keys = example_keys(rng, step, batch.question_id.shape[0])
        embeddings = self.execution.map_rows(self.embed, params, (batch, keys), cost=tokens_of_rows)
        loss, metrics = self.match(params, embeddings, batch, keys)
        return self.dual.with_penalty(loss, metrics, embeddings.penalty)

    def embed(self, params: dict, rows: tuple[Batch, Array]) -> Embeddings:
        """Embeds pairs, given with their dropout keys [B], each by itself."""
        return self.dual.embed(params, rows)

    def match(self, params: dict, embeddings: Embeddings, batch: Batch, keys: Array) -> tuple[Array, dict[str, Array]]:
        """The matching loss of a batch's embeddings, and its metrics; `keys` [B] draw the wrong pairs.

        Raises:
          EndxError: when the batch has hard negatives and the loss draws its own.
        """
        settings, ids = self.settings, self.dual.known_ids(batch)
        if settings.match == IN_BATCH:
            temperature = self.dual.temperature(params)

            def in_batch(rows, axis_name):
                return self.dual.retrieval_loss(*rows, axis_name=axis_name)

            loss, metrics = self.execution.reduce_rows(in_batch, (at_temperature(embeddings, temperature), ids))
            return loss, metrics | {"temperature": temperature}
        if embeddings.hard_negatives is not None:
            raise EndxError(
                f"objective.match={settings.match} draws its wrong answers from the batch: set data.hard_negatives=0, "
                f"or objective.match={IN_BATCH}"
            )
        drawn = draw_others(fold(keys, _DRAW), settings.negatives)
        ids = ids if settings.mask_false_negatives else {}

        def sampled(rows, axis_name):
            question, answer, drawn, ids = rows
            return sampled_matching(question, answer, drawn, kind=settings.match, axis_name=axis_name, **ids)

        return self.execution.reduce_rows(sampled, (embeddings.question, embeddings.answer, drawn, ids)), {}


def check_cosines(model: DualEncoder, settings: MatchingSettings) -> None:
    """Raises EndxError when cosines are to be matched and the towers do not rank by them."""
    check(
        settings.match == IN_BATCH or model.question.normalize,
        f"objective.match={settings.match} is of cosines; set model.normalize, or objective.match={IN_BATCH}",
    )


# Apart from the numbers of the towers' keys.
_DRAW = 1 << 21
