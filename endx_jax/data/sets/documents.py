"""Documents: texts with ids that are encoded, stored in an index and returned as answers."""

import dataclasses
import re
from collections.abc import Mapping

from endx_jax.errors import EndxError

# Maximum bytes of an id in UTF-8.
LONGEST_ID = 512
# Characters that ids must not contain: control characters, and Unicode's line and paragraph separators.
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")

Scalar = str | int | float | bool


@dataclasses.dataclass(frozen=True)
class Document:
    """Text that can be retrieved.

    Attributes:
      id: external id, unique in its corpus; see `check_id`.
      text: text to encode, including the title at its beginning if there is one.
      metadata: further fields that are returned with search results, such as `title` or `url`; not encoded.
      questions: known questions that the text answers; encoded as questions, each on its own.
    """

    id: str
    text: str
    metadata: Mapping[str, Scalar] = dataclasses.field(default_factory=dict)
    questions: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class FoundDocument:
    """Document found for a question.

    Attributes:
      rank: rank, from 1.
      score: inner product, BM25 score, or fused score; higher is better.
      document: document of the index.
    """

    rank: int
    score: float
    document: Document


def check_id(identifier: str, where: str) -> str:
    """Returns the id if it fits in a URL path and in a line of a file; `where` begins the message otherwise.

    Raises:
      EndxError: the id is empty, `.` or `..`, longer than `LONGEST_ID`, or holds control characters.
    """
    if not identifier:
        raise EndxError(f"{where} is empty")
    if identifier in (".", ".."):
        raise EndxError(f"{where} is {identifier!r}, which URLs can't name: choose another id")
    if control := CONTROL.search(identifier):
        raise EndxError(f"{where} holds the control character {control[0]!a}: remove it")
    if len(identifier) > LONGEST_ID or len(identifier.encode("utf-8", "surrogatepass")) > LONGEST_ID:
        raise EndxError(f"{where} is longer than {LONGEST_ID} bytes: choose a shorter id")
    return identifier
