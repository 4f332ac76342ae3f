"""Tables and figures of the papers, computed with the library: `papers.toml` holds the expected values."""
