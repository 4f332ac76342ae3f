r"""The prior's share of a variational auto-encoder's loss (Kingma and Welling 2014), and samples of its posterior.

The posterior of a text is a Gaussian with a mean and a deviation for each of E dimensions, $N(\mu, diag(\sigma^2))$,
given as mean and logarithm of the deviation; the prior is $N(0, I)$.
"""

import jax
import jax.numpy as jnp

from endx_jax.checks import check_arrays
from endx_jax.errors import EndxError
from endx_jax.numerics import at_least_float32

Array = jax.Array


def gaussian_kl(mean: Array, log_deviation: Array) -> Array:
    r"""The divergence of a posterior from the prior, of each dimension by itself, in nats.

    $KL(N(\mu, \sigma^2) \| N(0, 1)) = (\mu^2 + \sigma^2 - 1) / 2 - \log \sigma$ (Kingma and Welling 2014, appendix B).

    Args:
      mean: [...].
      log_deviation: [...], log sigma.

    Returns:
      [...], float32 at least, not negative: sigma^2 - 1 - 2 log sigma keeps its digits where sigma is nearly 1.
    """
    if mean.shape != log_deviation.shape:
        raise EndxError(f"mean has shape {mean.shape} and log_deviation {log_deviation.shape}; both must be the same")
    mean, log_deviation = at_least_float32(mean), at_least_float32(log_deviation)
    return (jnp.square(mean) + (jnp.expm1(2 * log_deviation) - 2 * log_deviation)) / 2


def free_bits(kl: Array, least: float) -> Array:
    """The divergence with `least` nats a text that cost nothing (Kingma et al. 2016, arXiv 1606.04934, Eq. 15).

    Every dimension has its share of them, least / E: what its mean over the batch lies below that has no gradient, so
    nothing is won by making a dimension carry less.

    Args:
      kl: [B, E], of each text and dimension.
      least: nats a text; 0 gives the mean over texts of their divergence.

    Returns:
      A scalar, nats a text, at least `least`.
    """
    check_arrays({"kl": (kl, "[B, E]")})
    each = jnp.mean(kl, axis=0)
    return jnp.sum(jnp.maximum(each, least / kl.shape[-1]))


def sample(mean: Array, log_deviation: Array, keys: Array) -> Array:
    """A sample of each text's posterior, reparameterised: mean + deviation * noise.

    Args:
      mean: [B, E].
      log_deviation: [B, E].
      keys: [B], one a text, so that its noise does not depend on how a batch is cut up.
    """
    noise = jax.vmap(lambda key: jax.random.normal(key, mean.shape[1:], mean.dtype))(keys)
    return mean + jnp.exp(log_deviation) * noise
