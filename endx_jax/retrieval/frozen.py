"""What the frozen part of a tower, all of it below its head, makes of texts: computed once and kept."""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from endx_jax.data.token_cache import content_key
from endx_jax.models.dual_encoder import SIDES
from endx_jax.retrieval.encode import TextEncoder
from endx_jax.retrieval.identity import model_identity
from endx_jax.retrieval.vector_cache import VectorCache

# Texts encoded at a time: what is in memory of vectors that are kept on disk.
BLOCK = 1 << 14


def base_vectors(
    encoder: TextEncoder,
    params: dict,
    side: str,
    texts: Sequence[str],
    cache: VectorCache | None = None,
    *,
    progress: bool = False,
) -> np.ndarray:
    """What the head of one side's tower receives of N texts: see `Tower.base`.

    Args:
      encoder: of the towers, made with `part=model.base`.
      params: theirs; those of heads do not matter.
      side: `question` or `answer`.
      texts: N texts.
      cache: where the vectors are kept for the next time; None to compute them.
      progress: whether to show a bar.

    Returns:
      float32 [N, E], mapped from the cache where there is one.
    """
    key = content_key(texts, "base", side, base_identity(encoder, params))
    return encode_once(encoder, params, side, texts, key, cache, (encoder.width(params),), progress=progress)


def base_identity(encoder: TextEncoder, params: dict) -> str:
    """As `model_identity`, of what is below the heads, and with the precision of the computation."""
    model = encoder.model
    question, answer = (model.tower(side).clone(head=None) for side in SIDES)
    dtypes = [str(model.tower(side).token_embedder.dtype) for side in SIDES]
    below = dataclasses.replace(model, question=question, answer=answer)
    identity = model_identity(below, below_heads(params), encoder.preparations)
    return " ".join([identity, *dtypes])


def below_heads(dual_encoder: dict) -> dict:
    """A dual encoder's parameters without those of its heads."""
    kept = {place: {g: p for g, p in groups.items() if g != "head"} for place, groups in dual_encoder.items()}
    return {place: groups for place, groups in kept.items() if groups}


def encode_once(
    encoder: TextEncoder,
    params: dict,
    side: str,
    texts: Sequence[str],
    key: str,
    cache: VectorCache | None,
    shape: tuple[int, ...],
    *,
    progress: bool = False,
) -> np.ndarray:
    """Encodes N texts to [N, *shape], or takes them from the cache under a key."""

    def blocks() -> Iterator[np.ndarray]:
        for start in range(0, max(1, len(texts)), BLOCK):
            yield encoder(params, side, texts[start : start + BLOCK], progress=progress)

    return np.concatenate([*blocks()]) if cache is None else cache.vectors(key, (len(texts), *shape), blocks)
