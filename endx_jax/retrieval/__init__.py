"""From embeddings or words to rankings: scorers, exact evaluation, and the files that rankings are kept in."""
