"""MultiReQA (Guo et al. 2020): the bounds of sentences, without texts, joined with MRQA's contexts by question id.

A folder holds both: `candidates.json`, as MultiReQA publishes it, and MRQA's file of the same data set and split, each
perhaps as `.gz`.
"""

import array
import dataclasses
import os
from collections.abc import Iterator, Sequence

from endx_jax.data.paragraphs import Paragraph
from endx_jax.data.readers import files, mrqa
from endx_jax.errors import EndxError

CANDIDATES = ("candidates.json", "candidates.jsonl")
CONTEXTS = (".jsonl", ".jsonl.gz")


@dataclasses.dataclass(slots=True)
class _Bounds:
    """The sentences of a context: the line that named it first, and `start, end, start, end, ...`."""

    line: int
    numbers: array.array


def paragraphs(folder: str) -> Iterator[Paragraph]:
    """Yields the contexts of a MultiReQA folder with its sentences: see `join`."""
    names = sorted(os.listdir(folder))
    candidates = next(name for name in names if name.lower().removesuffix(".gz") in CANDIDATES)
    contexts = [name for name in names if name != candidates and name.lower().endswith(CONTEXTS)]
    if not contexts:
        raise EndxError(f"{folder}: no texts beside {candidates}; put MRQA's .jsonl.gz of the same split there")
    yield from join(os.path.join(folder, candidates), [os.path.join(folder, name) for name in contexts])


def join(candidates: str, contexts: Sequence[str]) -> Iterator[Paragraph]:
    """Yields the contexts that have sentences, in MRQA's order and without its marks.

    A question's answers are all spans that MRQA detected, and right is each sentence in which one of them starts, as
    ReQA has it. A sentence of marks alone is left out. Contexts for which MultiReQA has no sentences are passed over.

    Args:
      candidates: MultiReQA's file.
      contexts: MRQA's files.

    Raises:
      EndxError: a file is broken, a sentence lies outside its context, or its context is in none of the files.
    """
    bounds = _bounds(candidates)
    for path in contexts:
        for context in mrqa.contexts(path, every_span=True):
            found = next((bounds.pop(question.id) for question in context.questions if question.id in bounds), None)
            if found is not None:
                yield Paragraph(context.article, context.unmarked.text, context.questions, _spans(found, context, path))
    if bounds:
        name, first = min(bounds.items(), key=lambda item: item[1].line)
        raise EndxError(
            f"{candidates}, line {first.line}: question {name!r} is not in {' or '.join(contexts)}; give MRQA's file "
            "of the same data set and split"
        )


def _bounds(path: str) -> dict[str, _Bounds]:
    """The sentences by the first question of their context."""
    found: dict[str, _Bounds] = {}
    for number, row in files.objects(path):
        where = f"{path}, line {number}"
        name = files.text(files.value(row, "candidate_id", where), f"{where}: 'candidate_id'")
        start, end = (files.value(row, key, where) for key in ("response_start", "response_end"))
        if type(start) is not int or type(end) is not int or not 0 <= start < end:
            raise EndxError(f"{where}: a sentence from {start!r} to {end!r}; a start and a greater end are needed")
        # SQuAD_ID1/ID2/_0: all questions of the context, and then which sentence it is.
        questions, slash, _ = name.partition("_")[2].rpartition("/_")
        if not slash or not questions:
            raise EndxError(f"{where}: candidate_id {name!r} is not of the form NAME_QUESTION/.../_NUMBER")
        found.setdefault(questions.partition("/")[0], _Bounds(number, array.array("l"))).numbers.extend((start, end))
    return found


def _spans(bounds: _Bounds, context: mrqa.Context, path: str) -> tuple[tuple[int, int], ...]:
    numbers = bounds.numbers
    if max(numbers) > context.length:
        raise EndxError(
            f"{context.where}: MultiReQA has a sentence up to character {max(numbers)} of this context, which has "
            f"{context.length}: {path} is not the file that it was made from"
        )
    spans = (context.unmarked.span(start, end) for start, end in zip(numbers[::2], numbers[1::2], strict=True))
    return tuple(sorted({(start, end) for start, end in spans if start < end}))
