"""Data sets of `endx prepare`, by name: `reqa/squad` or, with a split, `reqa/squad:validation`."""

from endx_jax.data.formats.format import Format, Place, ReadOptions
from endx_jax.data.formats.origins import PREFIXES, name_and_split
from endx_jax.data.formats.text_files import InvalidRows
from endx_jax.data.sets.records import RetrievalSet


def _records(place: Place, options: ReadOptions, invalid: InvalidRows) -> RetrievalSet:
    from endx_jax.data.formats.reqa_dataset import read_prepared  # imports tensorflow-datasets

    return read_prepared(*name_and_split(place.path))


PREPARED = Format("prepared", lambda place: place.path.startswith(PREFIXES), records=_records)
