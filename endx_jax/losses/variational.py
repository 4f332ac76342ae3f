r"""KL divergence and sampling of Gaussian posteriors in variational auto-encoders (Kingma and Welling 2014).

The posterior of a text is $N(\mu, diag(\sigma^2))$ in E dimensions, given as $\mu$ and $\log \sigma$. The prior is
$N(0, I)$.
"""

import jax
import jax.numpy as jnp

from endx_jax.checks import check_arrays
from endx_jax.errors import EndxError
from endx_jax.numerics import at_least_float32

Array = jax.Array


def gaussian_kl(mean: Array, log_deviation: Array) -> Array:
    r"""Computes the KL divergence of a posterior from the prior in each dimension, in nats.

    $KL(N(\mu, \sigma^2) \| N(0, 1)) = (\mu^2 + \sigma^2 - 1) / 2 - \log \sigma$ (Kingma and Welling 2014, appendix B).

    Args:
      mean: mu [...].
      log_deviation: log sigma [...].

    Returns:
      Divergences [...], at least float32 and not negative; precise for sigma near 1.

    Examples:
      >>> print(losses.gaussian_kl(jnp.array([0.0, 1.0, 2.0]), jnp.zeros(3)))
      [0.  0.5 2. ]
    """
    if mean.shape != log_deviation.shape:
        raise EndxError(f"mean has shape {mean.shape} and log_deviation {log_deviation.shape}; both must be the same")
    mean, log_deviation = at_least_float32(mean), at_least_float32(log_deviation)
    return (jnp.square(mean) + (jnp.expm1(2 * log_deviation) - 2 * log_deviation)) / 2


def free_bits(kl: Array, least: float) -> Array:
    """Computes the KL divergence with free bits, sum_e max(mean_b KL_be, least / E) (Kingma et al. 2016, Eq. 15).

    Dimensions whose mean divergence over the batch is below least / E have no gradient, so they are not compressed
    further. The paper is arXiv 1606.04934.

    Args:
      kl: divergences [B, E] of each text and dimension, in nats.
      least: free nats per text; with 0, the result is the mean divergence of the texts.

    Returns:
      A scalar in nats per text, at least `least`.

    Examples:
      >>> print(losses.free_bits(jnp.array([[2.0, 0.0], [4.0, 0.2]]), least=1.0))  # means 3 and 0.1, at least 1 / 2
      3.5
    """
    check_arrays({"kl": (kl, "[B, E]")})
    each = jnp.mean(kl, axis=0)
    return jnp.sum(jnp.maximum(each, least / kl.shape[-1]))


def sample(mean: Array, log_deviation: Array, keys: Array) -> Array:
    """Draws a reparameterised sample [B, E] of each text's posterior, mu + sigma * noise.

    Each text has a key, of keys [B], so that samples do not depend on the division of a batch.
    """
    noise = jax.vmap(lambda key: jax.random.normal(key, mean.shape[1:], mean.dtype))(keys)
    return mean + jnp.exp(log_deviation) * noise
