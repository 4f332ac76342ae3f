"""Cuts paragraphs into sentences by the rules of the ReQA benchmark (Ahmad et al. 2019), which were made for SQuAD.

The benchmark's splitter is a list of substitutions that break lines and mend them, applied one after the other to the
whole paragraph, and so is this one. Every boundary stands in white space: a break turns one such character into a
newline and a mend turns it into a space, so that nothing moves and a place in the marked text is a place in the
paragraph. The rules know unaccented capitals only.
"""

import dataclasses
import re


@dataclasses.dataclass(frozen=True)
class Rule:
    """One substitution.

    Attributes:
      name: what it is about.
      pattern: matches the place of a boundary, where need be with what stands before it.
      replacement: what the match becomes, of the same length.
    """

    name: str
    pattern: re.Pattern
    replacement: str


def _break(name: str, before: str, after: str) -> Rule:
    """A break between the patterns `before` and `after`."""
    return Rule(name, re.compile(rf"({before})[^\S\n](?={after})"), r"\1\n")


def _mend(name: str, words: str, after: str = "") -> Rule:
    """A mend after one of `words`, alternatives of fixed length, with its full stop, and before the pattern `after`."""
    # The newline comes first in the pattern and is looked back from: the search runs ten times as fast.
    before = "|".join(rf"(?<=\b{word}\.\n)" for word in words.split("|"))
    return Rule(name, re.compile(rf"\n(?:{before})(?={after})"), " ")


_NAME = '"?[A-Z][a-z]'

# In the order in which they are applied.
RULES = (
    # Breaks after the end of a sentence, with the quotes, brackets and references that close with it.
    _break("stop", r"""[.?!][)'" ”]*""", r"""[\['"(“]?[A-Z0-9]"""),
    _break("reference", r"""[.?!]['"”]?(?:\[[^\]\n]+\])+""", "[A-Z0-9]"),
    _break("omission", r"\[\.\.\.\]", r"\[?[A-Z]"),
    # Mends after the stop of an abbreviation.
    _mend("title", "Mr|Mrs|Ms|Dr|Prof|Fr|Rev|Msgr|St|Sta"),
    _mend("rank or office", "Lt|Gen|Col|Maj|Adm|Capt|Sgt|Rep|Gov|Sen|Pres"),
    _mend("common abbreviation", r"e\.g|ie|i\.e|v|vs|p|pp|cf|a\.k\.a|approx|app|esp|est|tr"),
    _mend("month", "Jan|Aug|Oct|Nov|Dec"),
    _mend("mountain or fort", "Mt|Ft"),
    _mend("time zone", r"a\.m|p\.m", "Eastern|EST"),
    # One, two or three initials before a name: at each is looked for those that are left.
    _mend("initials", r"(?<!\S)[A-Z]", rf"(?:[A-Z]\.\s){{0,2}}{_NAME}"),
    _mend("unspaced initials", r"[A-Z]\.[A-Z]", _NAME),
    # Breaks again before words that are no name: these begin a sentence even after an abbreviation.
    _break("pronoun", r"""[.!?]['")”]*""", r"(?:The|This|That|These|It)\s"),
    _break("adverb", r"\.", r"(?:Meanwhile|However)\b"),
    _break("preposition", r"\.", r"(?:In|On|By|During|After|Under|Although|Yet|As|Several|According to)\b"),
    # Mends after abbreviations that a number or a name follows.
    _mend("numbered part", "Art|art|No|no|Op|Opp|ch|Sec|cl|Rec|Ecl|Cor|Lk|Jn|Vol", r"[0-9]|[IVXLCDM]+\b"),
    _mend("date of a life", "b|d|r|c|ca|fl", "[A-Z0-9]"),
    _mend("cited work", "et al", r"\(?[0-9]{4}"),
    _mend("House bill", r"H\.R", "[0-9]"),
    # What the articles of SQuAD need beyond that.
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

# From the first to the last character of a line that is no white space.
_SENTENCE = re.compile(r"\S(?:.*\S)?")


def split_sentences(text: str) -> list[tuple[int, int]]:
    """The sentences of a paragraph, as spans `(start, end)` of it, in order and without white space at their ends.

    A newline in the paragraph counts as a space, so that a sentence may hold one. What is outside all spans is white
    space; a text of white space alone has no sentence.
    """
    marked = text.replace("\n", " ")
    for rule in RULES:
        marked = rule.pattern.sub(rule.replacement, marked)
    return [match.span() for match in _SENTENCE.finditer(marked)]
