"""Tables and figures of the papers, computed with endx_jax: `papers.toml` holds the expected values."""
