"""Paragraphs with questions, the common form of reading-comprehension data; their sentences and retrieval sets."""

import dataclasses
import re
from collections.abc import Callable, Iterable, Sequence

import regex

from endx_jax.data.sets.records import RetrievalSet, RetrievalSetBuilder
from endx_jax.errors import EndxError
from endx_jax.settings import check_choice

POOLS = ("answers", "sentences")  # of sentences: see `convert_paragraphs`


@dataclasses.dataclass(frozen=True, slots=True)
class AnswerSpan:
    """Annotator's answer: its text, and its start as a character position in the paragraph's context."""

    text: str
    start: int


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """Question about a paragraph, unchanged from the file; `answers` is empty if the paragraph has none."""

    id: str
    text: str
    answers: tuple[AnswerSpan, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Paragraph:
    """Paragraph with questions.

    Attributes:
      article: title of its article, or a unique name.
      context: text, including white space at its ends, since answers are positions in it.
      questions: questions about the paragraph; may be empty.
      sentences: spans `(start, end)` of the context from the data; None to split by ReQA's rules.
    """

    article: str
    context: str
    questions: tuple[Question, ...]
    sentences: tuple[tuple[int, int], ...] | None = None


def whole_paragraphs(paragraphs: Iterable[Paragraph], source: str, *, merge: bool) -> RetrievalSet:
    """Returns the retrieval set of whole paragraphs.

    Equal paragraphs are merged. Questions without an answer are left out; their paragraphs stay in the pool. Candidate
    ids are `p0`, `p1`, ... in order.

    Args:
      paragraphs: paragraphs in file order.
      source: name of the data, for messages.
      merge: true to merge equal questions, with the id and group (article) of the first and the right paragraphs of
        all. Otherwise only those with equal ids are merged, as RR counts SQuAD (Table 1), where ids are unique. RR does
        not merge equal paragraphs, of which SQuAD's train file has 5.

    Raises:
      EndxError: no question has an answer.
    """
    merged = RetrievalSetBuilder()
    for paragraph in paragraphs:
        text = paragraph.context.strip()
        merged.candidate(text, f"p{len(merged.candidates)}")
        for question in paragraph.questions:
            if question.answers:
                merged.add(question.text.strip(), [text], id=question.id, group=paragraph.article, merge=merge)
    records = merged.build()
    if not records.questions:
        raise EndxError(f"{source}: no answerable questions in the file")
    return dataclasses.replace(records, numbered=True)


# Sentence splitting by the rules of the ReQA benchmark (Ahmad et al. 2019), which were written for SQuAD. As in the
# benchmark, substitutions are applied one after the other to the whole paragraph. A break turns a white space character
# into a newline, and a mend turns a newline into a space, so that positions do not change. The rules know only
# unaccented capitals.


@dataclasses.dataclass(frozen=True)
class Substitution:
    """Substitution.

    Attributes:
      name: name of the case it handles.
      pattern: pattern of a sentence boundary, perhaps with the text before it.
      replacement: replacement of the same length, or a function of the match.
    """

    name: str
    pattern: re.Pattern
    replacement: str | Callable[[re.Match], str]


def _break(name: str, before: str, after: str) -> Substitution:
    """Returns a rule that breaks between the patterns `before` and `after`."""
    return Substitution(name, re.compile(rf"({before})[^\S\n](?={after})"), r"\1\n")


def _mend(name: str, words: str, after: str = "") -> Substitution:
    """Returns a rule that mends between a full stop after one of `words`, of fixed lengths, and the pattern `after`."""
    # The newline comes first in the pattern, with a lookbehind, which makes the search ten times as fast.
    before = "|".join(rf"(?<=\b{word}\.\n)" for word in words.split("|"))
    return Substitution(name, re.compile(rf"\n(?:{before})(?={after})"), " ")


_NAME = '"?[A-Z][a-z]'
_FIRST = r"""[.?!]['"”]?\["""
_REFERENCES = rf"({_FIRST}(?:(?!{_FIRST}[^\]\n])[^\]\n]){{1,500}}+\](?:\[[^\]\n]{{1,500}}+\])*+)([^\S\n](?=[A-Z0-9]))?"

# Rules in order of application.
RULES = (
    # Breaks after the end of a sentence and its closing quotes, brackets and references.
    _break("stop", r"""[.?!][)'" ”]*""", r"""[\['"(“]?[A-Z0-9]"""),
    # Linear time: a match begins at the last first bracket, and references before other text are matched unchanged.
    Substitution("reference", re.compile(_REFERENCES), lambda match: match[1] + ("\n" if match[2] else "")),
    _break("omission", r"\[\.\.\.\]", r"\[?[A-Z]"),
    # Mends after the full stop of an abbreviation.
    _mend("title", "Mr|Mrs|Ms|Dr|Prof|Fr|Rev|Msgr|St|Sta"),
    _mend("rank or office", "Lt|Gen|Col|Maj|Adm|Capt|Sgt|Rep|Gov|Sen|Pres"),
    _mend("common abbreviation", r"e\.g|ie|i\.e|v|vs|p|pp|cf|a\.k\.a|approx|app|esp|est|tr"),
    _mend("month", "Jan|Aug|Oct|Nov|Dec"),
    _mend("mountain or fort", "Mt|Ft"),
    _mend("time zone", r"a\.m|p\.m", "Eastern|EST"),
    # One, two or three initials before a name; the lookahead at each covers the following ones.
    _mend("initials", r"(?<!\S)[A-Z]", rf"(?:[A-Z]\.\s){{0,2}}{_NAME}"),
    _mend("unspaced initials", r"[A-Z]\.[A-Z]", _NAME),
    # Breaks again before words that begin a sentence even after an abbreviation.
    _break("pronoun", r"""[.!?]['")”]*""", r"(?:The|This|That|These|It)\s"),
    _break("adverb", r"\.", r"(?:Meanwhile|However)\b"),
    _break("preposition", r"\.", r"(?:In|On|By|During|After|Under|Although|Yet|As|Several|According to)\b"),
    # Mends between an abbreviation and a number or a name.
    _mend("numbered part", "Art|art|No|no|Op|Opp|ch|Sec|cl|Rec|Ecl|Cor|Lk|Jn|Vol", r"[0-9]|[IVXLCDM]+\b"),
    _mend("date of a life", "b|d|r|c|ca|fl", "[A-Z0-9]"),
    _mend("cited work", "et al", r"\(?[0-9]{4}"),
    _mend("House bill", r"H\.R", "[0-9]"),
    # Further rules for SQuAD's articles.
    _mend("album", r"I Am\.\.", "Sasha Fierce|World Tour"),
    _mend("company", "Warner Bros", "Records|Entertainment"),
    _mend("American figure", r"U\.S", "[0-9]{2}"),
    _mend("rupees", "Rs", "[0-9]"),
    _break("name with a stop", r"Jay Z\.|Washington, D\.C\.|for 4\.\)|Wii U\.", "[A-Z]"),
    _break("small first letter", r"\.", "iPod|iTunes"),
    _break("omission at the end", "", r"\[\.\.\.\]\s*\Z"),
    _mend("degree", r"\.Sc"),
    _break("bullet", "", "• ?[A-Z]"),
)

# A line without white space at its ends.
_SENTENCE = re.compile(r"\S(?:.*\S)?")
# Sentences in scripts other than Latin. They end at a full stop of such a script, or at a Latin one that ends no
# abbreviation and precedes a letter of such a script that is not lower-case.
_OTHER_SCRIPTS = regex.compile(
    r"""(?s)\S.*?(?:[。！？｡।॥۔։።។။]["'”’»」』）)]*"""
    r"""|(?:(?<=\w{3}|\d)\.|[?!؟])["'”’»)]*(?=\s+["'“‘«(]?(?!\p{Latin})[\p{Lu}\p{Lo}\p{Georgian}])|\Z)"""
)


def split_sentences(text: str) -> list[tuple[int, int]]:
    """Returns the sentences of a paragraph as spans `(start, end)`, in order and without white space at their ends.

    A newline in the paragraph counts as a space, so a sentence may contain one. Only white space is outside the spans.
    In a text that is mostly in another script than Latin, the full stops of other scripts end sentences too.
    """
    marked = text.replace("\n", " ")
    for rule in RULES:
        marked = rule.pattern.sub(rule.replacement, marked)
    spans = [match.span() for match in _SENTENCE.finditer(marked)]
    if 2 * sum(map(str.isascii, text)) > len(text):
        return spans
    return [match.span() for first, last in spans for match in _OTHER_SCRIPTS.finditer(text, first, last)]


def with_sentences(paragraph: Paragraph) -> Paragraph:
    """Returns the paragraph with the sentences of its context, unless the data has them."""
    if paragraph.sentences is not None:
        return paragraph
    return dataclasses.replace(paragraph, sentences=tuple(split_sentences(paragraph.context)))


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
        spans = with_sentences(paragraph).sentences or ()
        sentences = [paragraph.context[start:end] for start, end in spans]
        for place, sentence in enumerate(sentences):
            merged.candidate(sentence, f"s{number}.{place}")
        articles += [paragraph.article] * (len(merged.candidates) - len(articles))
        for question in paragraph.questions:
            if question.answers:
                places = [
                    next((place for place, (first, end) in enumerate(spans) if first <= answer.start < end), None)
                    for answer in question.answers
                ]
                right = dict.fromkeys(sentences[place] for place in places if place is not None)
                unplaced += places.count(None)
                rows += len(right)
                merged.add(question.text, [*right], sentences, id=question.id, group=paragraph.article)
    records = dataclasses.replace(merged.build(hard_negatives=True), numbered=True)
    if not records.questions:
        raise EndxError(f"{' and '.join(names)}: no question in the file has an answer that starts in a sentence")
    left_out = {example.question for example in merged.without_right} - merged.questions.keys()
    if pool == "answers":
        answers = sorted({sentence for right in records.qrels for sentence in right})
        records, articles = records.with_pool(answers), [articles[sentence] for sentence in answers]
    return Conversion(records, tuple(articles), rows, unplaced, len(left_out))
