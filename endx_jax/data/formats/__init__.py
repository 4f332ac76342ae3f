"""Data formats, one a file, and the registry by which the format of a path is found."""

from endx_jax.data.formats.format import Format, Place, ReadOptions
from endx_jax.data.formats.registry import FORMATS, Data, open_data, read, read_corpus

__all__ = ["FORMATS", "Data", "Format", "Place", "ReadOptions", "open_data", "read", "read_corpus"]
