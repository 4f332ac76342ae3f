"""The divergence against its integral and against samples, free bits, and samples of posteriors."""

import jax
import jax.numpy as jnp
import numpy as np
from helpers import row_keys

from endx_jax.losses import free_bits, gaussian_kl
from endx_jax.losses.variational import sample

MEAN = np.array([[0.0, 1.5, -0.3], [2.0, 0.0, 0.0]])
LOG_DEVIATION = np.array([[0.0, -1.0, 0.7], [-3.0, 0.4, 1e-4]])


divergence = jax.jit(gaussian_kl)


def test_the_divergence_is_the_integral_of_its_definition():
    """sum p (log p - log q) dx on a fine grid, in float64, for each dimension by itself."""
    x = np.linspace(-25, 25, 200_001)[:, None, None]
    deviation = np.exp(LOG_DEVIATION)
    log_p = -np.square((x - MEAN) / deviation) / 2 - LOG_DEVIATION
    density = np.exp(log_p) / np.sqrt(2 * np.pi)
    expected = np.sum(density * (log_p + np.square(x) / 2), axis=0) * (x[1] - x[0])
    with jax.enable_x64(True):
        np.testing.assert_allclose(divergence(MEAN, LOG_DEVIATION), expected.reshape(2, 3), atol=1e-9)
        gradients = jax.jit(jax.grad(lambda *x: jnp.sum(gaussian_kl(*x)), (0, 1)))(MEAN, LOG_DEVIATION)
        np.testing.assert_allclose(gradients, (MEAN, deviation**2 - 1), rtol=1e-12)
    # At mean 0 it is (deviation's logarithm)^2 to first order: 1e-8 here, where 1 + 1e-8 is 1 in float32.
    np.testing.assert_allclose(divergence(np.zeros(2, np.float32), np.float32([1e-4, 0])), [1e-8, 0], rtol=1e-3)


def test_the_divergence_is_what_samples_say():
    """The mean over 50,000 samples of log p(z) - log q(z), whose standard error is below 0.02."""
    count = 50_000
    mean, log_deviation = (np.broadcast_to(np.float32(x[0]), (count, 3)) for x in (MEAN, LOG_DEVIATION))
    latent = np.asarray(jax.jit(sample)(mean, log_deviation, row_keys(count)))
    log_ratio = -np.square((latent - mean) / np.exp(log_deviation)) / 2 - log_deviation + np.square(latent) / 2
    np.testing.assert_allclose(np.mean(log_ratio, axis=0), divergence(MEAN, LOG_DEVIATION)[0], atol=0.06)


def test_free_bits_are_shared_by_the_dimensions_and_have_no_gradient():
    kl = np.float32([[0.3, 0.01], [0.5, 0.03], [0.7, 0.08]])  # three texts, two dimensions
    value, gradient = jax.jit(jax.value_and_grad(free_bits), static_argnums=1)(kl, 0.2)
    np.testing.assert_allclose(value, 0.5 + 0.1, rtol=1e-6)  # means over texts: .5 and .04; .2 / 2 of each is free
    np.testing.assert_allclose(gradient, [[1 / 3, 0], [1 / 3, 0], [1 / 3, 0]], rtol=1e-6)
    np.testing.assert_allclose(jax.jit(free_bits, static_argnums=1)(kl, 0.0), 0.5 + 0.04, rtol=1e-6)


def test_a_sample_depends_on_its_text_alone():
    draw, own = jax.jit(sample), row_keys(2)
    both, turned = draw(MEAN, LOG_DEVIATION, own), draw(MEAN[::-1], LOG_DEVIATION[::-1], own[::-1])
    np.testing.assert_array_equal(turned[::-1], both)
    assert len(np.unique(np.round((both - MEAN) / np.exp(LOG_DEVIATION), 4))) == 6  # each its own noise
