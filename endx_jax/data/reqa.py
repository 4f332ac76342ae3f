"""Conversion of reading-comprehension data to sentence retrieval as in ReQA (Ahmad et al. 2019)."""

import dataclasses
import os
from collections.abc import Iterable, Sequence

from endx_jax.data.readers import formats
from endx_jax.data.sets.paragraphs import Paragraph, split_sentences
from endx_jax.data.sets.records import RetrievalSet, RetrievalSetBuilder
from endx_jax.errors import EndxError
from endx_jax.settings import check_choice

POOLS = ("answers", "sentences")


@dataclasses.dataclass(frozen=True)
class Conversion:
    """Converted data and counts.

    Attributes:
      records: retrieval set.
      articles: article of each candidate's first occurrence.
      rows: number of pairs of a question and a right sentence before equal questions are merged, which papers report as
        the number of training pairs; `len(records.pairs)` is the number after merging.
      unplaced_answers: number of annotators' answers that are left out because they start outside all sentences.
      unplaced_questions: number of merged questions that are left out because they have no other answers.
    """

    records: RetrievalSet
    articles: tuple[str, ...]
    rows: int
    unplaced_answers: int
    unplaced_questions: int


Path = str | os.PathLike


def from_squad(path: Path, pool: str = "answers", *, skip_invalid: bool = False) -> RetrievalSet:
    """Reads reading-comprehension data as questions and the sentences that answer them: see `convert`."""
    return convert(path, pool, skip_invalid=skip_invalid).records


from_squad = from_squad


def convert(paths: Path | Sequence[Path], pool: str = "answers", *, skip_invalid: bool = False) -> Conversion:
    """Converts reading-comprehension data: see `convert_paragraphs`.

    Args:
      paths: file or folder in a format of `formats.read_paragraphs`, or several, which are concatenated.
      pool: `answers` or `sentences`.
      skip_invalid: see `formats.read_paragraphs`.

    Raises:
      EndxError: the format is unknown, the pool is unknown, or no answer starts in a sentence.
    """
    names = [os.fspath(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
    found = (p for name in names for p in formats.read_paragraphs(name, skip_invalid=skip_invalid))
    return convert_paragraphs(found, names, pool)


def convert_paragraphs(paragraphs: Iterable[Paragraph], names: Sequence[str], pool: str = "answers") -> Conversion:
    """Converts paragraphs to questions and the sentences that answer them.

    A sentence is right for a question if an annotator's answer starts in it. Sentences are split by ReQA's rules,
    unless the data provide them. Equal sentences are merged into one candidate with the id `sP.S` of the first:
    sentence S of paragraph P, counted from 0, the same in both pools. Equal questions are merged too, with the id of
    the first and the right sentences of all; as in the papers' counts, questions that differ in white space are not
    equal. Both keep the order of the data. A question's group is the title of its article. Its hard negatives are the
    other sentences of its paragraphs that are in the pool. Questions without an answer are omitted.

    Args:
      paragraphs: paragraphs in order; those without questions are ignored.
      names: names of the data, for messages.
      pool: `answers`, the sentences that are right for a question, as in ENDX (Wang et al. 2021, Table 1); or
        `sentences`, all sentences of the paragraphs with a question, as in ReQA, which does not merge equal sentences.

    Raises:
      EndxError: the pool is unknown, or no answer in the data starts in a sentence.
    """
    check_choice("pool", pool, POOLS)
    merged = RetrievalSetBuilder()
    articles: list[str] = []
    rows = unplaced = 0
    for number, paragraph in enumerate(paragraphs):
        if not paragraph.questions:
            continue
        context = paragraph.context
        spans = split_sentences(context) if paragraph.sentences is None else paragraph.sentences
        sentences = [merged.candidate(context[a:b], f"s{number}.{place}") for place, (a, b) in enumerate(spans)]
        articles += [paragraph.article] * (len(merged.candidates) - len(articles))
        for question in paragraph.questions:
            if question.answers:
                found = [
                    next((place for place, (first, end) in enumerate(spans) if first <= answer.start < end), None)
                    for answer in question.answers
                ]
                right = {sentences[place] for place in found if place is not None}
                unplaced += found.count(None)
                rows += len(right)
                row = merged.question(question.text, question.id, paragraph.article)
                merged.wrong[row].update(sentences)
                for sentence in right:
                    merged.judge(row, sentence)
    everything = merged.build(hard_negatives=True)
    records = everything.select_questions([row for row, right in enumerate(everything.qrels) if right])
    if not records.questions:
        raise EndxError(f"{' and '.join(names)}: no question in the file has an answer that starts in a sentence")
    if pool == "answers":
        kept = sorted({sentence for right in records.qrels for sentence in right})
        records, articles = records.with_pool(kept), [articles[sentence] for sentence in kept]
    return Conversion(records, tuple(articles), rows, unplaced, len(everything.questions) - len(records.questions))
