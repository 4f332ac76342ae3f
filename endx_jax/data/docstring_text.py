"""From a docstring to a question and the text that answers it."""

import re
from collections.abc import Iterator

# One pattern a line: what it finds gives way to its group, or to nothing.
MARKUP = [
    re.compile(pattern)
    for pattern in (
        r":[a-z:]+:`~?([^`]+?)(?:\s*<[^`>]*>)?`",  # Sphinx roles
        r"`([^`<]+?)\s*<[^>]*>`_+",  # reStructuredText links
        r"\[`[~.]?([^`]+)`\](?:\([^)\s]*\))?",  # references of Hugging Face's doc builder
        r"\[([^\]]+)\]\([^)\s]+\)",  # Markdown links
        r"(?m)^\s*> ?(?:\[!\w+\])?()",  # Markdown quotes and admonitions
        r"(\[[\w, -]+\])_",  # citations
        r"(?m)^\s*:(?:param|type|return|returns|rtype|raise|raises)\b ?()",  # Sphinx fields
        r"</?(?:Tip|br|code|div|li|p|pre|ul)\b[^>]*>()",  # tags
        r"(?<![\w*])\*{1,2}([\w -]+)\*{1,2}(?![\w*])",  # emphasis
        r"`()",
    )
]
UNDERLINE = re.compile(r"[-=~]{3,}")
DROPPED_SECTIONS = {"example", "examples", "reference", "references", "see also"}
DROPPED_BLOCK = re.compile(
    r"(\.\.( .*)?)|((example code|examples?( usage)?|sample usage|usage|references?|see also)( \([^)]*\))?\s*:+)", re.I
)
SENTENCE = re.compile(r"(.+?(?<!\be\.g)(?<!\bi\.e)(?<!\bvs)(?<!\betc)(?<!\bcf)[.!?])(?=\s+[\"'(\[A-Z]|$)")
WORDS_IN_QUESTION = range(4, 41)
LEAST_WORDS_IN_ANSWER = 8


def question_and_answer(docstring: str) -> tuple[str, str] | None:
    """The summary sentence and everything after it as plain prose, or None where they make no good pair.

    The summary must be a sentence of 4 to 40 words, nearly all of them plain words, ended by a full stop and not
    repeated in the rest, which must have 8 words or more. Templates that their library fills in at import are refused.
    """
    if "%(" in docstring:
        return None
    summary, _, rest = _prose(docstring).partition("\n\n")
    sentence = SENTENCE.match(" ".join(summary.split()))
    if sentence is None:
        return None
    question = sentence.group(1)
    answer = " ".join(f"{sentence.string[sentence.end() :]} {rest}".split())
    enough = len(answer.split()) >= LEAST_WORDS_IN_ANSWER
    repeated = question.rstrip(".").casefold() in answer.casefold()
    return (question, answer) if enough and not repeated and _is_sentence(question) else None


def _is_sentence(text: str) -> bool:
    words = text.split()
    plain = sum(word.strip(".,;:()'\"").replace("-", "").isalpha() for word in words)
    formula = re.match(r"\w+\(|.*(->|[=\\])", text)
    return len(words) in WORDS_IN_QUESTION and text[0].isupper() and not formula and plain >= 0.75 * len(words)


def _prose(docstring: str) -> str:
    """Drops code, directives, and the sections of examples and references; then the markup of what is left."""
    text = "\n".join(_prose_lines(docstring.strip().split("\n")))
    for pattern in MARKUP:
        text = pattern.sub(r"\1", text)
    return re.sub(r"\n\s*\n", "\n\n", text)


def _prose_lines(lines: list[str]) -> Iterator[str]:
    fenced = doctest = in_dropped_section = False
    block_indent = None  # Lines that are indented deeper than this belong to a block that is dropped.
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        stripped = line.strip()
        indent = len(line) - len(line.lstrip())
        if stripped.startswith("```"):
            fenced = not fenced
        elif not stripped:
            doctest = False
            yield ""
        elif not (fenced or doctest or (block_indent is not None and indent > block_indent)):
            block_indent = None
            if UNDERLINE.fullmatch(following.strip()):
                in_dropped_section = stripped.casefold() in DROPPED_SECTIONS
            if stripped.startswith(">>>"):
                doctest = True
            elif DROPPED_BLOCK.fullmatch(stripped):
                block_indent = indent
            elif not in_dropped_section and not UNDERLINE.fullmatch(stripped):
                if stripped.endswith("::"):
                    block_indent = indent
                yield line.rstrip().removesuffix("::")
