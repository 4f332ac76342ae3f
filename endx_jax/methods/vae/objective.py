"""Dual-VAEs and Cross-VAEs: towers whose embeddings must also reconstruct texts (Yu et al. 2020).

A posterior takes the place of an embedding; ranking uses its mean. Besides the matching of pairs, each side has a
decoder that reconstructs its texts from their latent vectors (Dual-VAEs) or from those of the other side (Cross-VAEs).
"""

import dataclasses
from typing import cast

import flax.struct
import jax
import jax.numpy as jnp

from endx_jax.batch import Batch, Tokens
from endx_jax.losses.variational import free_bits, gaussian_kl, sample
from endx_jax.methods.objective import Embeddings, LossAndMetrics, Objective
from endx_jax.methods.vae.decoders import Deviation
from endx_jax.methods.vae.decoding import DecodingSettings, TextDecoders, tokens_of, tokens_of_decoded
from endx_jax.methods.vae.matching import MatchingObjective, MatchingSettings, check_cosines
from endx_jax.models.dropout import fold
from endx_jax.models.dual_encoder import SIDES
from endx_jax.models.tower import Projection
from endx_jax.numerics import l2_normalize
from endx_jax.settings import check, check_choice, key

Array = jax.Array


@dataclasses.dataclass(frozen=True)
class VaeSettings(MatchingSettings, DecodingSettings):
    """Settings of the method, `config.objective`; docs/vae.md has the choices that the paper leaves open."""

    name: str = key("vae", "Name of the method.")
    matching_weight: float = key(1.0, "Weight of the matching loss, gamma of Eq. 7.")
    reconstruction_weight: float = key(
        1.0, "Weight of the reconstruction loss in nats per text, alpha of Eq. 7 (unstated)."
    )
    kl_weight: float = key(1.0, "Final weight of the divergence in nats per text, beta of Eq. 7 (Yu et al.: 1).")
    anneal_epochs: float = key(
        50.0,
        "Passes over the training pairs in which beta rises from 0 (Yu et al.: half of 100). 0: see `anneal_steps`.",
    )
    anneal_steps: int = key(0, "Steps in which beta rises from 0, if `anneal_epochs` is 0.")
    free_bits: float = key(0.0, "Nats of divergence per text without cost (Kingma et al. 2016), spread over E.")
    match_on: str = key("sample", "Matched vectors: sample (Yu et al. Eq. 3) or mean, which is used for ranking.")
    mean_scale: float = key(1.0, "Factor from the projection to the means; affects decoders but not ranks.")
    initial_deviation: float = key(1.0, "Deviation of every posterior before training.")

    def __post_init__(self):
        MatchingSettings.__post_init__(self)
        DecodingSettings.__post_init__(self)
        check_choice("objective.match_on", self.match_on, ("sample", "mean"))
        for name in ("matching_weight", "reconstruction_weight", "kl_weight", "free_bits"):
            check(getattr(self, name) >= 0, f"objective.{name} is {getattr(self, name)}; it must not be negative")
        check(
            not (self.anneal_steps and self.anneal_epochs),
            f"objective.anneal_steps and anneal_epochs are {self.anneal_steps} and {self.anneal_epochs}: set one to 0",
        )
        check(
            min(self.anneal_steps, self.anneal_epochs) >= 0,
            "objective.anneal_steps and anneal_epochs must not be negative",
        )
        for name in ("mean_scale", "initial_deviation"):
            check(getattr(self, name) > 0, f"objective.{name} is {getattr(self, name)}; it must be positive")


@flax.struct.dataclass
class Posterior:
    """Gaussian posteriors of B texts of one side, and a sample of each; all [B, E].

    Attributes:
      mean: mu.
      log_deviation: log sigma.
      latent: z.
    """

    mean: Array
    log_deviation: Array
    latent: Array


@flax.struct.dataclass
class Posteriors:
    """Posteriors of B pairs.

    Attributes:
      question: of the questions.
      answer: of the answers.
      penalty: [B], of the poolings of both towers.
    """

    question: Posterior
    answer: Posterior
    penalty: Array


@dataclasses.dataclass(frozen=True)
class VaeObjective(Objective):
    """Two towers, deviations of their embeddings, and a decoder to the texts of each side.

    The outputs of the towers' projections, times `settings.mean_scale`, are the means. Parameters are those of the dual
    objective, and `deviation` and `decoder`, by side.
    """

    settings: VaeSettings

    def __post_init__(self):
        check(
            self.model.question.projection is not None,
            "objective.name=vae needs model.projection, the width of the latent space (Yu et al.: 512)",
        )
        check_cosines(self.model, self.settings)

    @property
    def matching(self) -> MatchingObjective:
        """Objective of the towers alone."""
        return MatchingObjective(self.model, self.settings, self.execution)

    @property
    def decoders(self) -> TextDecoders:
        """Decoders of the texts."""
        return TextDecoders(self.model, self.settings)

    def init(self, key: Array, dual_encoder: dict) -> dict:
        """Adds parameters of deviations and decoders, drawn from `key`, to those of the dual encoder."""
        deviation = {}
        for side in SIDES:
            pooled_width = self.model.tower_params(dual_encoder, side)["projection"]["kernel"].shape[0]
            deviation[side] = self._deviation.init(key, jnp.zeros((1, pooled_width)))["params"]
        params = self.matching.init(key, dual_encoder)
        return params | {"deviation": deviation, "decoder": self.decoders.init(key, dual_encoder)}

    def embed_params(self, params: dict) -> dict:
        """Returns the parameters that `embed` reads: all but the decoders'."""
        return {name: params[name] for name in ("dual_encoder", "deviation")}

    def loss(self, params: dict, embedded: Posteriors, batch: Batch, keys: Array, step: Array) -> LossAndMetrics:
        """Computes the loss of one global batch (Eq. 7), which has no hard negatives.

        The metrics are the matching's and `matching_loss`; `nll/SIDE` and `kl/SIDE`, in nats a text, and
        `word_nll/SIDE`, in nats a word, of the texts of a side and of its posteriors; `kl_weight`.
        """
        check(batch.hard_negatives is None, "objective.name=vae takes no hard negatives: set data.hard_negatives=0")
        settings, size, posteriors = self.settings, batch.question_id.shape[0], embedded
        matched = self._embeddings(posteriors, sampled=settings.match_on == "sample")
        matching, metrics = self.matching.match(params, matched, batch, keys)

        latents, decoders = {side: getattr(posteriors, side).latent for side in SIDES}, self.decoders
        decoded, of_side = self.execution.sum_rows(
            decoders.trained_nll,
            decoders.parameters(params),
            (latents, tokens_of(batch), keys),
            cost=tokens_of_decoded,
        )
        weight = self._kl_weight(step)
        divergences = jnp.zeros(())
        for side in SIDES:
            kl = gaussian_kl(getattr(posteriors, side).mean, getattr(posteriors, side).log_deviation)
            divergences += free_bits(kl, settings.free_bits)
            nats, words = of_side[side]
            metrics[f"nll/{side}"], metrics[f"word_nll/{side}"] = nats / size, nats / jnp.maximum(words, 1)
            metrics[f"kl/{side}"] = jnp.mean(jnp.sum(kl, axis=1))
        loss = settings.matching_weight * matching + settings.reconstruction_weight * decoded / size
        metrics |= {"matching_loss": matching, "kl_weight": weight}
        return self.matching.with_penalty(loss + weight * divergences, metrics, posteriors.penalty)

    def embed(self, params: dict, rows: tuple[Batch, Array]) -> Posteriors:
        """Computes the posteriors of pairs, given their keys [B], with dropout."""
        batch, keys = rows
        return self.posteriors(params, batch, keys, dropout=True)

    def posteriors(self, params: dict, batch: Batch, keys: Array, dropout: bool = False) -> Posteriors:
        """Computes the posteriors of pairs; `keys` [B] draw their samples."""
        found, penalty = {}, jnp.zeros(())
        for number, side in enumerate(SIDES):
            tokens, own = cast(Tokens, getattr(batch, side)), fold(keys, number)
            towers = params["dual_encoder"]
            pooled, of_side = self.model.pool_with_penalty(towers, side, tokens, own if dropout else None)
            mean = self.settings.mean_scale * self.model.project(towers, side, pooled)
            deviation = cast(Array, self._deviation.apply({"params": params["deviation"][side]}, pooled))
            found[side] = Posterior(mean, deviation, sample(mean, deviation, fold(own, _NOISE)))
            penalty = penalty + of_side
        return Posteriors(**found, penalty=penalty)

    def _embeddings(self, posteriors: Posteriors, sampled: bool) -> Embeddings:
        """Returns the embeddings to match, finished by the towers."""
        found = {}
        for side in SIDES:
            posterior = getattr(posteriors, side)
            values = posterior.latent if sampled else posterior.mean
            found[side] = l2_normalize(values) if self.model.tower(side).normalize else values
        return Embeddings(**found, penalty=posteriors.penalty)

    def _kl_weight(self, step: Array) -> Array:
        """Returns beta at a step, which rises linearly from 0 at the first."""
        anneal_steps = self.settings.anneal_steps or self.settings.anneal_epochs * self.steps_per_epoch
        risen = jnp.minimum(1.0, step / anneal_steps) if anneal_steps else jnp.ones(())
        return self.settings.kl_weight * risen

    @property
    def _deviation(self) -> Deviation:
        return Deviation(cast(Projection, self.model.question.projection).width, self.settings.initial_deviation)


# Apart from the numbers of the towers' keys and the matching's.
_NOISE = 1 << 22
