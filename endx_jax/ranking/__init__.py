"""Rankings from embeddings or words: search in memory, exact evaluation, fusion, re-ranking and result files."""
