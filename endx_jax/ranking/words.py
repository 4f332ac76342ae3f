"""Words of texts for BM25, in the language of the texts."""

import itertools
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import regex

from endx_jax.data.languages import BIGRAMS, ENGLISH, NONE, is_latin
from endx_jax.errors import EndxError

VERSION = 1  # of the rules below; caches of the words of another one are made anew
# Scripts that are written without spaces, and Hangul, whose words end in particles.
_SPACELESS = (
    r"[\p{Han}\p{Bopo}\p{Hira}\p{Kana}ー\p{Hang}\p{Thai}\p{Laoo}\p{Khmr}\p{Mymr}\p{Lana}\p{Talu}\p{Tavt}\p{Yiii}]"
)
_RUN, _CHARACTER = regex.compile(rf"((?:{_SPACELESS}\p{{M}}*)+)"), regex.compile(rf"{_SPACELESS}\p{{M}}*")
# Soft hyphens, joiners, spaces of no width, marks of direction, selectors of variants.
_INVISIBLE = regex.compile(r"\p{Default_Ignorable_Code_Point}+")
# Pattern for words in bm25s and scikit-learn, which counts the length of English texts.
_PLAIN = re.compile(r"\w\w+")
_flat = itertools.chain.from_iterable
# Vowel signs of Hebrew and Arabic, which are usually left out, tatweel, forms of alef and yeh, and digits.
_EQUAL: dict[int, int | str | None] = {
    **dict.fromkeys((*range(0x591, 0x5C8), *range(0x610, 0x61B), *range(0x64B, 0x660), 0x640, 0x670)),
    **{n: None for n in range(0x6D6, 0x6EE) if not chr(n).isalpha()},
    **str.maketrans("آأإٱى٫٬", "ااااي.,"),
    **{n: str(unicodedata.decimal(chr(n))) for n in range(0x660, 0xABFA) if chr(n).isdecimal()},
}


def _pattern(word: str, dots: str, plus: str = "+", sharp: str = "#") -> str:
    """Returns the regular expression of a run of characters; 3.14, C++, C# and .NET are one run each."""
    suffix = rf"[{dots}](?<=\d.)\d+|[{plus}][{plus}]|[{sharp}](?<=\b\w.)(?!\w)"
    return rf"{word}+(?:{suffix})*|\.[nN][eE][tT]\b(?<!\w....)"


def _stemmer_library() -> Any:
    """Imports PyStemmer, or raises EndxError if it is not installed."""
    try:
        import Stemmer
    except ImportError:
        raise EndxError("BM25 needs the package Stemmer: pip install PyStemmer") from None
    return Stemmer


class Words(NamedTuple):
    """Words of a document.

    Attributes:
      words: all words, also the parts of words such as 3.14.
      length: number of words that BM25 counts as the length of the document.
    """

    words: list[str]
    length: int


class WordTokenizer:
    """Splits texts into lower-case, stemmed words; no stop words are removed.

    Words are runs of two or more letters, digits and marks, in NFKC. Of scripts without spaces between words, and of
    Hangul, they are all pairs of neighbouring characters. 3.14, C++, C# and .NET are words. Hebrew and Arabic lose
    vowel signs, and ı equals i. Apart from these cases, English texts have the words of bm25s with the English Snowball
    stemmer.

    Attributes:
      language: language of the stemmer; of a language without one, words are not stemmed.
      version: identifies what the words depend on beside the text and the language.
    """

    def __init__(self, language: str = ENGLISH):
        """Loads the stemmers.

        Raises:
          EndxError: PyStemmer is not installed.
        """
        stemmer = _stemmer_library()

        def stem_of(name: str) -> Callable[[str], str]:
            stem = stemmer.Stemmer(name, 0).stemWord if name in stemmer.algorithms() else str
            # Only Turkish suffixes depend on the dot of i. Other stemmers get i, the lower case of the capital I.
            read = "ı" if name == "turkish" else "i"
            return lambda word: stem(word.replace("ı", read)).replace("ı", "i")

        self.language = language
        self.version = f"{VERSION}, PyStemmer {stemmer.version()}, Unicode {unicodedata.unidata_version}"
        self._stem = stem_of(language)
        # In other scripts, Latin words are mostly English.
        self._stem_ascii = self._stem if is_latin(language) or language == NONE else stem_of(ENGLISH)
        # In English a comma separates thousands; both parts are words, as in earlier versions.
        dots = "." if language == ENGLISH else ".,"
        self._ascii = re.compile(_pattern(r"\w", dots), re.ASCII)
        self._any = regex.compile(_pattern(r"[\w\p{N}\p{DI}]", f"{dots}٫．", "+＋", "#＃"))

    def __call__(self, texts: Sequence[str]) -> list[list[str]]:
        """Returns the words of each question."""
        return [list(words) for _, words in self._split(texts, _Known(self._words))]

    def documents(self, texts: Sequence[str]) -> list[Words]:
        """Returns the words of each document.

        Words such as 3.14 also yield their parts of two or more characters, so that questions find the parts. In
        English, such words and pairs of characters do not change a document's length.
        """
        cache, documents = _Known(self._words_and_parts), []
        for text, (runs, words) in zip(texts, self._split(texts, cache), strict=True):
            listed, unusual = [*words], self.language == ENGLISH and not cache.unusual.isdisjoint(runs)
            documents.append(Words(listed, len(_PLAIN.findall(text.lower()) if unusual else listed)))
        return documents

    def _split(self, texts: Sequence[str], cache: "_Known") -> Iterator[tuple[list[str], Iterator[str]]]:
        for text in texts:
            runs = (self._ascii if text.isascii() else self._any).findall(text)
            yield runs, _flat(map(cache.__getitem__, runs))

    def _words_and_parts(self, run: str) -> tuple[str, ...]:
        words, parts = self._words(run), _PLAIN.findall(run)
        return words if run in parts or not run.isascii() else (*words, *_flat(map(self._words, parts)))

    def _words(self, run: str) -> tuple[str, ...]:
        """Returns the words of a run of characters."""
        if self.language == "turkish" and "I" in (run := unicodedata.normalize("NFC", run)):
            # I is the capital of ı, and in foreign words such as API of i; the stems may differ.
            return tuple(_flat(dict.fromkeys(self._words(run.replace("I", small)) for small in "ıi")))
        if run.isascii():
            return (self._stem_ascii(run.lower()),) if len(run) > 1 else ()
        run = unicodedata.normalize("NFKC", _INVISIBLE.sub("", run)).translate(_EQUAL)
        run = unicodedata.normalize("NFKC", run.casefold()).replace("i\u0307", "i")  # of a Turkish capital
        if len(parts := _RUN.split(run)) == 1:
            stem = self._stem_ascii if run.isascii() else self._stem
            return (stem(run),) if len(run) > 1 else ()
        words = list[str]()
        for number, part in enumerate(parts):
            if number % 2:
                characters = _CHARACTER.findall(part)
                words += map("".join, itertools.pairwise(characters)) if len(characters) > 1 else characters
            elif part:
                words.append(self._stem_ascii(part) if part.isascii() else self._stem(part))
        return tuple(words)


class _Known(dict[str, tuple[str, ...]]):
    """Words of runs, computed on first use.

    Attributes:
      unusual: runs whose number of words differs from that of `_PLAIN`.
    """

    def __init__(self, words: Callable[[str], tuple[str, ...]]):
        super().__init__()
        self._words, self.unusual = words, set[str]()

    def __missing__(self, run: str) -> tuple[str, ...]:
        words = self[run] = self._words(run)
        if len(words) != (len(run) > 1) or not run.isalnum():
            self.unusual.add(run)
        return words


def describe_words(language: str) -> str:
    """Returns how the texts of a language are split into words, for messages."""
    if language in BIGRAMS:
        return f"character bigrams of {language.title()}"
    if language not in _stemmer_library().algorithms():
        return "no stemmer" if language == NONE else f"no stemmer for {language.title()}"
    return f"{language.title()} Snowball stemmer"
