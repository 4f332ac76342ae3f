"""Rankings from embeddings or words: search, exact evaluation, indexes and result files."""
