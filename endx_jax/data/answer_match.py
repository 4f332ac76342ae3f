r"""Whether a passage holds an answer string, as DPR and OpenNQ count hits (Karpukhin et al. 2020; Dong et al. 2022).

From facebookresearch/DPR, `dpr/data/qa_validation.py` with its `SimpleTokenizer`: text is normalised to NFD and cut
into runs of letters, digits and marks and into single characters that are neither space nor control; tokens are
compared in lower case, and an answer is there where all its tokens stand next to each other.
"""

import functools
import unicodedata
from collections.abc import Iterable

# Between tokens when they are looked for as one string: no token holds it, as it is a control character.
_SEAM = "\0"


@functools.cache
def _tokens_pattern():
    import regex

    return regex.compile(r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]")


def tokens(text: str) -> list[str]:
    """The tokens of a text, in lower case."""
    return [token.lower() for token in _tokens_pattern().findall(unicodedata.normalize("NFD", text))]


def seamed(text: str) -> str:
    """The tokens of a text as one string, in which `holds` looks."""
    return _SEAM + "".join(token + _SEAM for token in tokens(text))


def holds(passage: str, answers: Iterable[str]) -> bool:
    """Whether a passage, as `seamed` makes it, holds one of the answers, made likewise; one without tokens is nowhere.

    (DPR finds an answer without tokens in every passage.)
    """
    return any(len(answer) > len(_SEAM) and answer in passage for answer in answers)
