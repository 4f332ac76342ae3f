"""A document: what is encoded, kept in an index and shown as an answer."""

import dataclasses
from collections.abc import Mapping

Scalar = str | int | float | bool


@dataclasses.dataclass(frozen=True)
class Document:
    """One text that can be found.

    Attributes:
      id: external id, unique in its corpus.
      text: what is encoded; a title stands before it, where there is one.
      metadata: what else is known and shown with it, such as `title`, `source` or `url`; not encoded.
    """

    id: str
    text: str
    metadata: Mapping[str, Scalar] = dataclasses.field(default_factory=dict)
