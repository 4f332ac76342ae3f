"""Check of the decoders on held-out texts: likelihood with matching and with shuffled latent vectors."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from endx_jax.batch import Batch
from endx_jax.data.batches import Pairs
from endx_jax.losses.variational import gaussian_kl
from endx_jax.methods.evaluation import compute_held_out
from endx_jax.methods.vae.decoding import SOURCES
from endx_jax.methods.vae.objective import VaeObjective
from endx_jax.models.dropout import example_keys
from endx_jax.models.dual_encoder import SIDES
from endx_jax.parallel.sharding import rounded_up
from endx_jax.retrieval.results import Section

MEASURES = ("nll", "nll_shuffled", "words", "kl")
# In nats a text: the posterior of a text that carries less tells it from fewer than three others.
COLLAPSED = 1.0


def collapsed(metrics: Mapping[str, float]) -> dict[str, str]:
    """Returns a warning for each posterior that has collapsed onto the prior.

    Args:
      metrics: of a step; `kl/SIDE` is the divergence of a side's posteriors from the prior, in nats a text.
    """
    return {
        name: f"the posterior of each {name.removeprefix('kl/')} has collapsed onto the prior: it carries "
        f"{divergence:.2g} nats; let beta rise more slowly (objective.anneal_steps or anneal_epochs), lower "
        "objective.kl_weight, or set objective.free_bits"
        for name, divergence in metrics.items()
        if name.startswith("kl/") and divergence < COLLAPSED
    }


def check_decoders(
    objective: VaeObjective, params: dict, pairs: Pairs, mesh: Mesh, *, batch_size: int, most: int = 2000
) -> Section | None:
    """Compares the likelihood of held-out texts with their own and with other pairs' latent vectors.

    Equal likelihoods mean that the decoder ignores its latent vector, as with a collapsed posterior.

    Args:
      objective: the VAE objective.
      params: parameters of the objective.
      pairs: pairs held out from training.
      mesh: mesh over which each batch is split.
      batch_size: pairs decoded together, rounded up to a multiple of the devices that share them.
      most: maximum number of pairs; the first whole batches are used.

    Returns:
      The section `decoders`, with an entry for each side whose texts are decoded: `pairs`, the number of pairs; `nll`
      in nats per text, given a sample of the posterior selected by `objective.decodes`; `nll_shuffled`, given the
      sample of the previous pair in the batch; `words` per text; and `kl` of the posteriors in nats per text. Samples
      are the same in each call. None if there are fewer pairs than `batch_size`.
    """
    pairs, batch_size = pairs.first(most), rounded_up(batch_size, mesh)
    batches = len(pairs) // batch_size
    if not batches:
        return None

    def measure(params: dict, batch: Batch, number) -> dict:
        keys = example_keys(jax.random.key(0, impl="threefry2x32"), number, batch_size)
        posteriors = objective.posteriors(params, batch, keys)
        decoders, of_decoders = objective.decoders, objective.decoders.parameters(params)
        latents = {side: getattr(posteriors, side).latent for side in SIDES}
        shuffled = jax.tree.map(lambda latent: jnp.roll(latent, 1, axis=0), latents)
        sums = {}
        for side in SIDES:
            source = getattr(posteriors, SOURCES[objective.settings.decodes][side])
            sums[side] = {
                "nll": decoders.nll(of_decoders, side, latents, batch),
                "nll_shuffled": decoders.nll(of_decoders, side, shuffled, batch),
                "words": jnp.sum(getattr(batch, side).mask[:, 1:]),
                "kl": jnp.sum(gaussian_kl(source.mean, source.log_deviation)),
            }
        return sums

    parts = [sums for _, sums in compute_held_out(measure, params, pairs, mesh, batch_size, batches)]
    count = batches * batch_size
    measured = {
        side: {"pairs": count, **{name: float(np.sum([p[side][name] for p in parts])) / count for name in MEASURES}}
        for side in SIDES
    }
    lines = [
        f"{side} decoder: {values['nll']:.2f} nats per held-out text of {values['words']:.1f} words, "
        f"{values['nll_shuffled']:.2f} with another pair's latent vector; KL divergence {values['kl']:.2f} nats"
        for side, values in measured.items()
    ]
    return Section("decoders", measured, lines)
