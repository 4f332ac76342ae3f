"""endx_jax: answer retrieval with dual encoders, in JAX."""

__version__ = "0.1.0"
