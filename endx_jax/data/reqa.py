"""Conversion of reading-comprehension data to sentence retrieval as in ReQA (Ahmad et al. 2019)."""

import dataclasses
import os
from collections.abc import Iterable, Sequence

from endx_jax.data.paragraphs import Paragraph, split_sentences
from endx_jax.data.readers import formats
from endx_jax.data.records import RetrievalSet
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


def read(path: Path, pool: str = "answers", *, skip_invalid: bool = False) -> RetrievalSet:
    """Reads reading-comprehension data as questions and the sentences that answer them: see `convert`."""
    return convert(path, pool, skip_invalid=skip_invalid).records


from_squad = read


def convert(paths: Path | Sequence[Path], pool: str = "answers", *, skip_invalid: bool = False) -> Conversion:
    """Converts reading-comprehension data: see `convert_paragraphs`.

    Args:
      paths: file or folder in a format of `formats.paragraphs`, or several, which are concatenated.
      pool: `answers` or `sentences`.
      skip_invalid: see `formats.paragraphs`.

    Raises:
      EndxError: the format is unknown, the pool is unknown, or no answer starts in a sentence.
    """
    names = [os.fspath(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
    found = (p for name in names for p in formats.paragraphs(name, skip_invalid=skip_invalid))
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
    merged = _Merged()
    for number, paragraph in enumerate(paragraphs):
        if paragraph.questions:
            merged.add(paragraph, number)
    records = merged.records(pool)
    if not records.questions:
        raise EndxError(f"{' and '.join(names)}: no question in the file has an answer that starts in a sentence")
    articles = tuple(merged.article_of[sentence] for sentence in records.candidates)
    unplaced_questions = len(merged.sentences_of) - len(records.questions)
    return Conversion(records, articles, merged.rows, merged.unplaced, unplaced_questions)


class _Merged:
    """Accumulates the sentences and questions of paragraphs, with equal texts merged."""

    def __init__(self):
        self.sentence_ids: dict[str, str] = {}
        self.article_of: dict[str, str] = {}
        self.question_ids: dict[str, str] = {}
        self.sentences_of: dict[str, set[str]] = {}
        self.neighbours: dict[str, set[str]] = {}
        self.articles: dict[str, str] = {}
        self.rows = 0
        self.unplaced = 0

    def add(self, paragraph: Paragraph, number: int) -> None:
        spans = split_sentences(paragraph.context) if paragraph.sentences is None else paragraph.sentences
        sentences = [paragraph.context[start:end] for start, end in spans]
        for place, sentence in enumerate(sentences):
            self.sentence_ids.setdefault(sentence, f"s{number}.{place}")
            self.article_of.setdefault(sentence, paragraph.article)
        for question in paragraph.questions:
            if not question.answers:
                continue
            found = [_sentence_at(answer.start, spans, paragraph.context) for answer in question.answers]
            right = {sentence for sentence in found if sentence is not None}
            self.unplaced += found.count(None)
            self.rows += len(right)
            self.question_ids.setdefault(question.text, question.id)
            self.articles.setdefault(question.text, paragraph.article)
            self.sentences_of.setdefault(question.text, set()).update(right)
            self.neighbours.setdefault(question.text, set()).update(sentences)

    def records(self, pool: str) -> RetrievalSet:
        answering = set().union(*self.sentences_of.values())
        candidates = [s for s in self.sentence_ids if pool == "sentences" or s in answering]
        index = {sentence: n for n, sentence in enumerate(candidates)}
        questions = [question for question, right in self.sentences_of.items() if right]

        def rows(sentences: set[str]) -> tuple[int, ...]:
            return tuple(sorted(index[sentence] for sentence in sentences if sentence in index))

        wrong = {question: self.neighbours[question] - self.sentences_of[question] for question in questions}

        return RetrievalSet(
            questions=tuple(questions),
            candidates=tuple(candidates),
            qrels=tuple(rows(self.sentences_of[question]) for question in questions),
            question_ids=tuple(self.question_ids[question] for question in questions),
            candidate_ids=tuple(self.sentence_ids[sentence] for sentence in candidates),
            groups=tuple(self.articles[question] for question in questions),
            hard_negatives=tuple(rows(wrong[question]) for question in questions),
        )


def _sentence_at(start: int, spans: Sequence[tuple[int, int]], context: str) -> str | None:
    for first, end in spans:
        if first <= start < end:
            return context[first:end]
    return None
