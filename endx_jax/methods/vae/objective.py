"""Objective of Dual-VAEs and Cross-VAEs: dual encoders whose latent vectors also reconstruct texts (Yu et al. 2020).

Each text has a Gaussian posterior instead of an embedding; retrieval uses its mean. In addition to the matching loss,
each side has a decoder that reconstructs its texts from their own latent vectors (Dual-VAEs) or from those of the other
side (Cross-VAEs).
"""

import dataclasses
from typing import cast

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from endx_jax.batch import Batch
from endx_jax.losses.variational import free_bits, gaussian_kl, sample
from endx_jax.methods.objective import Embeddings, LossAndMetrics, Objective
from endx_jax.methods.vae.decoders import DecodingSettings, TextDecoders, decoding_cost, deviation, tokens_of
from endx_jax.methods.vae.matching import MatchingObjective, MatchingSettings
from endx_jax.models.dropout import fold
from endx_jax.models.dual_encoder import SIDES
from endx_jax.models.tower import Projection
from endx_jax.numerics import l2_normalize
from endx_jax.settings import key, require

Array = jax.Array


@dataclasses.dataclass(frozen=True)
class VaeSettings(MatchingSettings, DecodingSettings):
    """`config.objective` of the method `vae`. docs/vae.md lists what the paper leaves open, and our findings."""

    name: str = key("vae", "Name of the method.")
    matching_weight: float = key(1.0, "Gamma of Eq. 7, weight of the matching loss.", least=0)
    reconstruction_weight: float = key(
        1.0,
        "Alpha of Eq. 7, weight of the negative log-likelihood in nats per text (Yu et al.: unstated).",
        least=0,
    )
    kl_weight: float = key(
        1.0, "Final beta of Eq. 7, weight of the KL divergence in nats per text (Yu et al.: 1).", least=0
    )
    anneal_epochs: float = key(
        50.0,
        "Epochs over which beta rises linearly from 0 (Yu et al.: half of 100); 0: use `anneal_steps`.",
        least=0,
    )
    anneal_steps: int = key(0, "Optimizer steps over which beta rises; an alternative to `anneal_epochs`.", least=0)
    free_bits: float = key(
        0.0,
        "KL divergence in nats per text without a penalty (Kingma et al. 2016), divided evenly over E dimensions.",
        least=0,
    )
    match_on: str = key(
        "sample",
        "Input of the matching loss: sample (Yu et al. Eq. 3) or mean, which retrieval uses.",
        choices=("sample", "mean"),
    )
    mean_scale: float = key(
        1.0,
        "Factor from the tower's projection to the posterior's mean; it affects the decoders and not the ranks.",
        above=0,
    )
    initial_deviation: float = key(1.0, "Initial standard deviation of every posterior.", above=0)

    def __post_init__(self):
        super().__post_init__()
        require(
            not self.distillation.loss,
            "objective.name=vae takes no hard negatives, which objective.distillation needs: leave "
            "objective.distillation.loss empty",
        )
        require(
            not (self.anneal_steps and self.anneal_epochs),
            f"objective.anneal_steps and anneal_epochs are {self.anneal_steps} and {self.anneal_epochs}: set one to 0",
        )


@flax.struct.dataclass
class Posterior:
    """Gaussian posteriors of B texts of one side, and a sample of each.

    Attributes:
      mean: mu [B, E].
      log_deviation: log sigma [B, E].
      latent: z [B, E], a sample.
    """

    mean: Array
    log_deviation: Array
    latent: Array


Posteriors = dict[str, Posterior]  # of B pairs, by side


@dataclasses.dataclass(frozen=True)
class VaeObjective(Objective):
    """Objective of two towers with Gaussian posteriors and a text decoder for each side.

    The posteriors' means are the outputs of the towers' projections times `settings.mean_scale`. Parameters are those
    of the dual objective, and `deviation` and `decoder` by side.
    """

    settings: VaeSettings

    def __post_init__(self):
        require(
            self.model.question.projection is not None,
            "objective.name=vae needs a latent space: set model.projection to its width (Yu et al.: 512)",
        )
        _ = self.matching  # checks the towers

    @property
    def matching(self) -> MatchingObjective:
        """Objective of the matching loss alone."""
        return MatchingObjective(self.model, self.settings, self.execution)

    @property
    def decoders(self) -> TextDecoders:
        """Decoders of both sides' texts."""
        return TextDecoders(self.model, self.settings)

    def init(self, key: Array, dual_encoder: dict) -> dict:
        """Returns the initial parameters for a given dual encoder's; `key` draws the decoders'."""
        deviation = {}
        for side in SIDES:
            pooled_width = self.model.tower_params(dual_encoder, side)["projection"]["kernel"].shape[0]
            deviation[side] = self._deviation.init(key, jnp.zeros((1, pooled_width)))["params"]
        params = self.matching.init(key, dual_encoder)
        return params | {"deviation": deviation, "decoder": self.decoders.init(key, dual_encoder)}

    def embed_params(self, params: dict) -> dict:
        """Returns the parameters that `embed` reads: all except the decoders'."""
        return {name: params[name] for name in ("dual_encoder", "deviation")}

    def loss(self, params: dict, embedded: Posteriors, batch: Batch, keys: Array, step: Array) -> LossAndMetrics:
        """Computes the loss of one global batch without hard negatives (Eq. 7).

        The metrics are those of the matching loss, `matching_loss`, `kl_weight`, and for each side `nll/SIDE` and
        `kl/SIDE` in nats per text and `word_nll/SIDE` in nats per word.
        """
        require(batch.hard_negatives is None, "objective.name=vae takes no hard negatives: set data.hard_negatives=0")
        settings, size, posteriors = self.settings, batch.question_id.shape[0], embedded
        matched = self._embeddings(posteriors, sampled=settings.match_on == "sample")
        matching, metrics = self.matching.loss(params, matched, batch, keys, step)

        latents, decoders = {side: posteriors[side].latent for side in SIDES}, self.decoders
        decoded, of_side = self.execution.sum_rows(
            decoders.trained_nll, decoders.parameters(params), (latents, tokens_of(batch), keys), cost=decoding_cost
        )
        weight = self._kl_weight(step)
        divergences = jnp.zeros(())
        for side in SIDES:
            kl = gaussian_kl(posteriors[side].mean, posteriors[side].log_deviation)
            divergences += free_bits(kl, settings.free_bits)
            nats, words = of_side[side]
            metrics[f"nll/{side}"], metrics[f"word_nll/{side}"] = nats / size, nats / jnp.maximum(words, 1)
            metrics[f"kl/{side}"] = jnp.mean(jnp.sum(kl, axis=1))
        loss = settings.matching_weight * matching + settings.reconstruction_weight * decoded / size
        metrics |= {"matching_loss": matching, "kl_weight": weight}
        return loss + weight * divergences, metrics

    def embed(self, params: dict, rows: tuple[Batch, Array]) -> Posteriors:
        """Computes the posteriors of pairs, given as (batch, PRNG keys [B]), with dropout."""
        batch, keys = rows
        return self.posteriors(params, batch, keys, dropout=True)

    def posteriors(self, params: dict, batch: Batch, keys: Array, dropout: bool = False) -> Posteriors:
        """Computes the posteriors of pairs; `keys` [B] draw the samples and the dropout."""
        by_side, towers = {}, params["dual_encoder"]
        side_keys = {side: fold(keys, number) for number, side in enumerate(SIDES)}
        sides = [(side, getattr(batch, side), of_side if dropout else None) for side, of_side in side_keys.items()]
        pooled_sides = self.model.of_sides(self.model.pool, towers, sides, batch.packing)
        for side, pooled in zip(SIDES, pooled_sides, strict=True):
            mean = self.settings.mean_scale * self.model.project(towers, side, pooled)
            deviation = cast(Array, self._deviation.apply({"params": params["deviation"][side]}, pooled))
            by_side[side] = Posterior(mean, deviation, sample(mean, deviation, fold(side_keys[side], _NOISE)))
        return by_side

    def _embeddings(self, posteriors: Posteriors, sampled: bool) -> Embeddings:
        """Returns the embeddings to match, with the towers' norm."""
        by_side = {}
        for side in SIDES:
            values = posteriors[side].latent if sampled else posteriors[side].mean
            by_side[side] = l2_normalize(values) if self.model.tower(side).normalize else values
        return Embeddings(**by_side)

    def _kl_weight(self, step: Array) -> Array:
        """Returns beta at a step: it rises linearly from 0 at step 0 to `kl_weight`."""
        anneal_steps = self.settings.anneal_steps or self.settings.anneal_epochs * self.steps_per_epoch
        risen = jnp.minimum(1.0, step / anneal_steps) if anneal_steps else jnp.ones(())
        return self.settings.kl_weight * risen

    @property
    def _deviation(self) -> nn.Dense:
        return deviation(cast(Projection, self.model.question.projection).width, self.settings.initial_deviation)


# Key number of the samples, distinct from those of the towers and of the matching loss.
_NOISE = 1 << 22
