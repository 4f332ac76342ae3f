"""Pooling of a document's token vectors (Clavié, Chaffin and Adams 2024, arXiv:2409.14683): fewer vectors to store."""

import numpy as np

from endx_jax.data.batches.ragged import RaggedVectors
from endx_jax.models.token_embeddings import TokenPooling
from endx_jax.numerics import unit_rows


def pool_tokens(vectors: np.ndarray, pooling: TokenPooling) -> np.ndarray:
    """Replaces groups of similar token vectors by their means.

    The groups are those of Ward's hierarchical clustering of the cosine distances (1 - cosine), as in
    sentence-transformers' `HierarchicalTokenPooling`.

    Args:
      vectors: float32 [L, E], of unit norm.
      pooling: number of groups, and what is done to their means.

    Returns:
      float32 [K, E]: the first `pooling.protected` vectors and one for each of (L - protected) // factor groups, but at
      least one.
    """
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform

    kept, others = vectors[: pooling.protected], vectors[pooling.protected :]
    count = max(1, int(len(others) // pooling.factor))
    if count < len(others):
        distances = np.clip(1 - others @ others.T, 0, 2)
        merged = linkage(squareform(distances, checks=False), method="ward")
        _, groups = np.unique(fcluster(merged, t=count, criterion="maxclust"), return_inverse=True)
        sums = np.zeros((groups.max() + 1, others.shape[1]), np.float32)
        np.add.at(sums, groups, others)
        vectors = np.concatenate([kept, sums / np.bincount(groups)[:, None].astype(np.float32)])
    return unit_rows(vectors) if pooling.normalize else vectors


def pool_documents(vectors: RaggedVectors, pooling: TokenPooling) -> RaggedVectors:
    """Applies `pool_tokens` to the float32 token vectors of each document."""
    return RaggedVectors.of([pool_tokens(text, pooling) for text in vectors], vectors.values.shape[1])
