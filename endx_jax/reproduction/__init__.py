"""The papers' tables and figures, computed again: `papers.toml` is the one place that says what is expected."""
