r"""Divergence and samples of a variational auto-encoder's posterior (Kingma and Welling 2014).

The posterior of a text is a Gaussian $N(\mu, diag(\sigma^2))$ in E dimensions, given as mean and logarithm of the
deviation; the prior is $N(0, I)$.
"""

import jax
import jax.numpy as jnp

from endx_jax.checks import check_arrays
from endx_jax.errors import EndxError
from endx_jax.numerics import at_least_float32

Array = jax.Array


def gaussian_kl(mean: Array, log_deviation: Array) -> Array:
    r"""Computes the divergence of a posterior from the prior, for each dimension, in nats.

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
    """Computes the divergence with `least` free nats per text (Kingma et al. 2016, arXiv 1606.04934, Eq. 15).

    Each dimension has least / E of them: a dimension whose mean over the batch is below that has no gradient.

    Args:
      kl: [B, E], of each text and dimension.
      least: nats per text; 0 gives the mean divergence over texts.

    Returns:
      A scalar in nats per text, at least `least`.
    """
    check_arrays({"kl": (kl, "[B, E]")})
    each = jnp.mean(kl, axis=0)
    return jnp.sum(jnp.maximum(each, least / kl.shape[-1]))


def sample(mean: Array, log_deviation: Array, keys: Array) -> Array:
    """Draws a reparameterised sample of each text's posterior: mean + deviation * noise.

    Args:
      mean: [B, E].
      log_deviation: [B, E].
      keys: [B], one per text, so that its noise does not depend on how a batch is chunked.
    """
    noise = jax.vmap(lambda key: jax.random.normal(key, mean.shape[1:], mean.dtype))(keys)
    return mean + jnp.exp(log_deviation) * noise
