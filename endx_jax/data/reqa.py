"""Sentence retrieval out of reading comprehension: the conversion of ReQA (Ahmad et al. 2019)."""

import dataclasses
import os
from collections.abc import Iterable, Sequence

from endx_jax.data.paragraphs import Paragraph
from endx_jax.data.readers import comprehension
from endx_jax.data.records import RetrievalSet
from endx_jax.data.sentences import split_sentences
from endx_jax.errors import EndxError
from endx_jax.settings import check_choice

POOLS = ("answers", "sentences")


@dataclasses.dataclass(frozen=True)
class Conversion:
    """Converted data, and what did not come through unchanged.

    Attributes:
      records: the retrieval set.
      homes: for each candidate the article of its first place.
      rows: how many pairs of a question and a right sentence there are before equal questions are merged, the number
        of training pairs that papers give; after it there are `len(records.pairs)`.
      unplaced_answers: annotators' answers that are left out because they start in no sentence, but in white space.
      unplaced_questions: questions, merged, that are left out because they have no other answers.
    """

    records: RetrievalSet
    homes: tuple[str, ...]
    rows: int
    unplaced_answers: int
    unplaced_questions: int


Path = str | os.PathLike


def read(path: Path, pool: str = "answers") -> RetrievalSet:
    """Reads reading-comprehension data as questions and the sentences that answer them: see `convert`."""
    return convert(path, pool).records


from_squad = read  # the name from when SQuAD was all that it read


def convert(paths: Path | Sequence[Path], pool: str = "answers") -> Conversion:
    """Converts reading-comprehension data: see `convert_paragraphs`.

    Args:
      paths: the file or folder, any that `comprehension.paragraphs` knows; or several, read one after another.
      pool: "answers" or "sentences".

    Raises:
      EndxError: the data are of no known format, or as `convert_paragraphs`.
    """
    names = [os.fspath(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
    return convert_paragraphs((p for name in names for p in comprehension.paragraphs(name)), names, pool)


def convert_paragraphs(paragraphs: Iterable[Paragraph], names: Sequence[str], pool: str = "answers") -> Conversion:
    """Makes of paragraphs questions and the sentences that answer them, and counts.

    Right for a question is each sentence in which an annotator's answer starts, also where the answer runs on into
    the next. Sentences are cut by ReQA's rules, unless the data bring their own. Those that are equal strings are one
    candidate, wherever they stand, with the id `sP.S` of the first: sentence S of paragraph P of the data, counted
    from 0, the same in both pools. Questions that are equal strings are one too, with the id of the first and the
    right sentences of all; as in the papers' counts, one with a space at its end is another. Both keep the order of
    the data. A question's group is the title of its article, and its hard negatives are the other sentences of its
    paragraphs, as far as they are in the pool. A question without an answer is left out, but counts where a paragraph
    must have a question.

    Args:
      paragraphs: in order; they are taken one at a time, but the sentences are kept.
      names: what the data are called in messages.
      pool: "answers", the sentences that are right for a question, as ENDX (Wang et al. 2021, Table 1) counts them; or
        "sentences", all sentences of the paragraphs with a question. ReQA takes these, but lists equal sentences of
        different paragraphs apart.

    Raises:
      EndxError: the pool is unknown, or no answer in the data starts in a sentence.
    """
    check_choice("pool", pool, POOLS)
    tally = _Tally()
    for number, paragraph in enumerate(paragraphs):
        if paragraph.questions:
            tally.add(paragraph, number)
    records = tally.records(pool)
    if not records.questions:
        raise EndxError(f"{' and '.join(names)}: no question in the file has an answer that starts in a sentence")
    homes = tuple(tally.homes[sentence] for sentence in records.candidates)
    return Conversion(records, homes, tally.rows, tally.unplaced, len(tally.sentences_of) - len(records.questions))


class _Tally:
    """What has been read so far, texts merged."""

    def __init__(self):
        self.sentence_ids: dict[str, str] = {}
        self.homes: dict[str, str] = {}
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
            self.homes.setdefault(sentence, paragraph.article)
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
