"""Conversion of reading-comprehension data to sentence retrieval as in ReQA (Ahmad et al. 2019)."""

from endx_jax.data.formats.registry import Path, convert
from endx_jax.data.sets.records import RetrievalSet

__all__ = ["convert", "from_squad"]


def from_squad(path: Path, pool: str = "answers", *, skip_invalid: bool = False) -> RetrievalSet:
    """Reads reading-comprehension data as questions and the sentences that answer them: see `convert`."""
    return convert(path, pool, skip_invalid=skip_invalid).records
