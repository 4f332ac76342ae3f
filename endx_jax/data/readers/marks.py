"""Takes the marks of structure out of MRQA's contexts, and says where each character has gone."""

import bisect
import dataclasses
import re

from endx_jax.data.sentences import split_sentences

# A tag as Natural Questions leaves it in its texts, attributes joined to the name: <P>, </P>, <Td_colspan="2">.
TAG = r'</?[A-Z][A-Za-z0-9]*(?:_\w+="[^">]*")*>'

# Tags, and MRQA's own marks: before a document, a paragraph and a title, and after a title. All stand apart.
_MARK = re.compile(rf"\s*(?<!\S)(?:\[(?:DOC|PAR|TLE|SEP)\]|{TAG})(?!\S)\s*")


@dataclasses.dataclass(frozen=True, slots=True)
class Unmarked:
    """A text without its marks.

    Attributes:
      text: what stood between marks, in order, with a space between.
      pieces: the spans `(start, end)` of it that stood between marks; none is empty.
      starts: for each piece where it started in the text with marks.
    """

    text: str
    pieces: tuple[tuple[int, int], ...]
    starts: tuple[int, ...]

    def place(self, place: int) -> int:
        """Where a place of the text with marks is now: for a mark it is the start of what follows."""
        piece = bisect.bisect_right(self.starts, place) - 1
        if piece < 0:
            return 0
        start, end = self.pieces[piece]
        now = start + place - self.starts[piece]
        if now <= end:
            return now
        return self.pieces[piece + 1][0] if piece + 1 < len(self.pieces) else len(self.text)

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Where a span of the text with marks is now, without white space at its ends; perhaps empty."""
        first, last = self.place(start), self.place(end)
        inside = self.text[first:last]
        return first + len(inside) - len(inside.lstrip()), first + len(inside.rstrip())

    def sentences(self) -> tuple[tuple[int, int], ...]:
        """The sentences by ReQA's rules, each within one piece: no sentence runs over a mark."""
        return tuple(
            (piece + start, piece + end)
            for piece, stop in self.pieces
            for start, end in split_sentences(self.text[piece:stop])
        )


def unmark(text: str) -> Unmarked:
    """Takes the marks out of a text, with the white space around them."""
    bounds = [0]
    for mark in _MARK.finditer(text):
        bounds += mark.span()
    bounds.append(len(text))
    found = [(start, text[start:end]) for start, end in zip(bounds[::2], bounds[1::2], strict=True) if end > start]
    pieces, length = [], 0
    for _, piece in found:
        pieces.append((length, length + len(piece)))
        length += len(piece) + 1
    return Unmarked(" ".join(piece for _, piece in found), tuple(pieces), tuple(start for start, _ in found))
