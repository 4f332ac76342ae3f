"""Documents, or their passages: texts with ids that are encoded, stored in an index and returned as answers."""

import dataclasses
import re
from collections.abc import Mapping, Sequence

import numpy as np

from endx_jax.errors import EndxError

# Maximum bytes of an id in UTF-8.
LONGEST_ID = 512
# Maximum characters of the title at the beginning of each passage.
LONGEST_TITLE = 200
# Characters that ids must not contain: control characters, and Unicode's line and paragraph separators.
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")

Scalar = str | int | float | bool


@dataclasses.dataclass(frozen=True)
class Document:
    """Text that can be retrieved: a document, or a passage of one.

    The passages of a document follow each other in their corpus. An index stores the metadata of the first one for all
    of them, and searches and counts documents by their best passage.

    Attributes:
      id: external id, unique in its corpus, but shared by the passages of a document; see `check_id`.
      text: text to encode, including the title at its beginning if there is one.
      metadata: further fields that are returned with search results, such as `title` or `url`; not encoded.
      questions: known questions that the text answers; encoded as questions, each on its own.
      passage: number of the passage in its document, from 1; 0 for a whole document.
      numbered: true if the data has no ids, so that this one was counted, and means nothing elsewhere.
    """

    id: str
    text: str
    metadata: Mapping[str, Scalar] = dataclasses.field(default_factory=dict)
    questions: tuple[str, ...] = ()
    passage: int = 0
    numbered: bool = dataclasses.field(default=False, compare=False, repr=False)

    @property
    def name(self) -> str:
        """Name of the text, unique in its corpus: the id, followed by `#` and the number for a passage."""
        return f"{self.id}#{self.passage}" if self.passage else self.id

    @property
    def body(self) -> str:
        """Text without its title."""
        title = str(self.metadata.get("title", ""))
        return self.text.removeprefix(f"{title[:LONGEST_TITLE] if self.passage else title} ")


def passages_of(whole: Document, texts: Sequence[str]) -> list[Document]:
    """Returns the passages of a document that is split into `texts`, each with the title at its beginning.

    The first has the metadata and known questions. If there is only one text, it is a whole document.
    """
    title = str(whole.metadata.get("title", ""))[:LONGEST_TITLE]
    several = len(texts) > 1
    first, *others = (
        Document(whole.id, f"{title} {text}".strip(), passage=n * several) for n, text in enumerate(texts, start=1)
    )
    return [dataclasses.replace(whole, text=first.text, passage=first.passage), *others]


def whole_document(passages: Sequence[Document]) -> Document:
    """Returns the document that consists of these passages; joins their texts without titles by blank lines."""
    if not passages[0].passage:
        return passages[0]
    return dataclasses.replace(passages[0], text="\n\n".join(passage.body for passage in passages), passage=0)


def asked_documents(
    documents: Sequence[Document], questions: Sequence[Sequence[str]], embeddings: Mapping[str, np.ndarray]
) -> tuple[list[Document], np.ndarray | None]:
    """Returns the documents with their known questions, and the embeddings of these in order; None without any."""
    asking = [dataclasses.replace(old, questions=tuple(asked)) for old, asked in zip(documents, questions, strict=True)]
    vectors = [embeddings[question] for asked in questions for question in asked]
    return asking, np.stack(vectors) if vectors else None


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
