"""Reader of documents as passages: Markdown, AsciiDoc, text, HTML; with the extra `documents` PDF and Office."""

import codecs
import dataclasses
import itertools
import os
import pathlib
import re
from collections.abc import Callable, Iterator, Sequence
from html.parser import HTMLParser

from endx_jax import json_files
from endx_jax.data.formats import folders, pdf_files, text_files
from endx_jax.data.sets.documents import CONTROL, LONGEST_ID, Document, Scalar, passages_of
from endx_jax.data.sets.paragraphs import split_sentences
from endx_jax.errors import EndxError, counted, install

ENDINGS = (".md", ".mdx", ".markdown", ".adoc", ".rst", ".txt", ".html", ".htm", *pdf_files.PACKAGES)
# Maximum characters of a passage, about 130 English words.
MOST = 800
# Data inside a text, such as an image, and ASCII words that are too long for a passage, such as encoded data.
INLINE_DATA = re.compile(r"\bdata:[\w.+-]+/[\w.+-]+[;,][^\s\"'<>()\[\]]*")
LONG_WORD = re.compile(rf"(?<![!-~])[!-~]{{{MOST + 1},}}")
# Parts of a text: lines with the headings before them, and as many words as a passage holds.
LINES = r"(?:#{1,6} .*\n)*[^\n]+"
WORDS = rf"(?s)\S.{{0,{MOST - 1}}}(?!\S)|\S.{{{MOST - 1}}}"
# Encoding that a page or an editor's comment declares, and the larger encodings that some names often stand for.
DECLARED = re.compile(rb"""(?i)(?:coding|charset)[ =:"']{1,9}((?:big|cp|euc|gb|iso|koi|lat|mac|shi|us|win)[\w-]+)""")
WIDER = {"iso-8859-1": "cp1252", "us-ascii": "cp1252", "gb2312": "gb18030", "gbk": "gb18030", "shift_jis": "cp932"}
# Elements of HTML that do not end a paragraph; headings in HTML and Markdown.
INLINE = re.compile("a|abbr|b|cite|code|em|font|i|kbd|mark|q|s|small|span|strong|sub|sup|u|var")
CELLS = ("td", "th")
HEADINGS = {"title": "# ", **{f"h{level}": "#" * level + " " for level in range(1, 7)}}
# A line of front matter in YAML or TOML. Text between lines of `---` that has other lines is part of the document.
FRONT_LINE = (
    r"""(?>[\w.-]+[ \t]*=[ \t]*(?P<quote>"{3}|'{3})(?s:.*?)(?P=quote).*\n"""  # field of TOML with a text of many lines
    r"""|["']?\w[\w.-]*+(?:[ ][\w.-]++)?["']?[ \t]*(?:=|:(?=\s)).*\n"""  # other field, named by one or two words
    r"""|[ \t]*\n|(?:[ \t]+\S|[#\]}-]).*\n"""  # blank or indented line, comment, item, or end of a list or table
    r"""|\[.*\][ \t]*\n)"""  # name of a table of TOML
)
# Front matter, whose first line is a field, one of its fields, and the fields that are titles, the first of them first.
FRONT_MATTER = re.compile(
    rf"""\s*(---|\+\+\+)[ \t]*\n(?P<fields>(?:[ \t]*\n|#.*\n)*(?:(?=[\w"']){FRONT_LINE}*?)?)"""
    r"(?:\1|\.\.\.)[ \t]*(?:\n|\Z)"
)
# Front matter with a title and without such lines, as in Pelican, MultiMarkdown, Nikola, docutils and PEPs.
HEADER = re.compile(
    r"\s*+(?=(?:.+\n)*?(?:\.\. |:)?[Tt]itle:)"
    r"(?P<fields>(?:(?:\.\. |:)?\w[\w -]*:(?:[ \t].*)?\n(?:[ \t]+\S.*\n)*)++)(?=[ \t]*\n\s*\S)"
)
FIELD = re.compile(r"^(?:\.\. |:)?([\w.-]+)[ \t]*[:=][ \t]*(\S.*(?:\n[ \t]+.*)*)", re.MULTILINE)
TITLES = ("title", "question", "linktitle", "sidebar_label")
# Fenced code, and the headings of Markdown: `# `, HTML's, and underlined ones.
MARKDOWN = re.compile(
    r"^[ \t]*(?P<fence>`{3,}+(?!.*`)|~{3,}).*(?s:.*?)(?:^[ \t]*(?P=fence)[`~]*[ \t]*$|\Z)"
    r"|^[ ]{0,3}\#[ \t]+(?P<first>\S.*)$|^[ \t]*(?i:<h1\b[^>]{0,300}>(?P<html>(?s:.{1,300}?))</h1>)"
    r"|(?:\A|(?<=\n\n))[ ]{0,3}(?P<text>[^\s#>|<*+`~=-].*)\n[ ]{0,3}(?P<line>=+|-{2,})[ \t]*$",
    re.MULTILINE,
)
# Headings of reStructuredText; and its fields, comments, labels and lists of links.
RST = re.compile(
    r"^(?P<over>([!-/:-@[-`{-~])\2{2,}[ \t]*\n[ \t]*)?(?P<text>\S.*)\n(?P<line>([!-/:-@[-`{-~])\5{2,})[ \t]*$",
    re.MULTILINE,
)
RST_SKIPPED = re.compile(
    r"^\.\. (?:_|(?:toctree|contents|include|index|meta|highlight|image)::|(?!\[|.*::)).*\n(?:[ \t]+.*\n|\n(?=[ \t]))*"
    r"|\A(?::[\w-]+:.*\n)+",
    re.MULTILINE,
)
# Code and headings of AsciiDoc; and its attributes, comments, labels, macros and the limits of other blocks.
ADOC = re.compile(
    r"(?:\A|(?<=\n\n)|(?<=[\]+]\n))(?P<fence>-{4,}|\.{4,}) *\n(?P<code>(?s:.*?))^(?P=fence) *$|^(?P<level>=+)(?= \S)"
    r"|^(?::!?\w[\w-]*!?:.*|//.*|\[[^\]\n]*\]+|[a-z]+::\S*\[.*\]|([=*_+])\4{3,}|\|===|--)[ \t]*(?:\n|\Z)",
    re.MULTILINE,
)


def names_in(path: str) -> list[str]:
    """Returns the names of all files at a path, relative to `folders.base`, if they are documents; none if not.

    A folder is one of documents if it has more than three times as many of them as data files.
    """
    names = [os.path.relpath(file, folders.base(path)) for file in folders.files_at(path)]
    documents = sum(name.lower().endswith(ENDINGS) for name in names)
    data = sum(text_files.uncompressed(name).endswith((".json", *folders.ENDINGS)) for name in names)
    return names if (documents > 3 * data if os.path.isdir(path) else documents == len(names)) else []


def passages(path: str, names: list[str], say: Callable[[str], object]) -> Iterator[tuple[str, Document]]:
    """Yields (file, passage) for the files of `names_in` at a path.

    A passage is whole paragraphs, or parts of a long one. Its text begins with the document's title: that of its
    front matter, else the first heading, else the file's name. Metadata are `title`, `source`, the path in the folder,
    and the texts and truth values of the front matter; the id is the path. At the end, `say` receives a line with the
    numbers of files, passages and skipped files, with reasons.

    Raises:
      EndxError: no file has a text.
    """
    skipped: dict[str, list[str]] = {}
    files = count = outside = 0
    inside = os.path.join(os.path.realpath(folder := folders.base(path)), "")
    for name in names:
        try:
            title, texts, fields = _read(folder, name)
        except EndxError as reason:
            skipped.setdefault(str(reason), []).append(name)
            continue
        files, count = files + 1, count + len(texts)
        outside += not os.path.realpath(os.path.join(folder, name)).startswith(inside)
        whole = Document(name, "", fields | {"title": title, "source": name})
        for passage in passages_of(whole, texts):
            yield os.path.join(folder, name), dataclasses.replace(passage, metadata=whole.metadata)
    reasons = ", ".join(
        f"{len(names):,} {reason} (such as {', '.join(f'{name!a:.100}' for name in names[:5])})"
        for reason, names in skipped.items()
    )
    if not count:
        raise EndxError(f"{path}: no text in its documents ({', '.join(ENDINGS)}); skipped {reasons}")
    links = f", {outside:,} of them by links to other folders" if outside else ""
    split = f"{counted(files, 'file')}{links}, split into {counted(count, 'passage')}"
    say(f"{path}: {split}{reasons and f'; skipped {reasons}'}")


def split_passages(text: str) -> list[str]:
    """Splits a text into passages of at most `MOST` characters, without data such as images inside it.

    A passage is whole paragraphs, else whole lines, else whole sentences, else whole words; if the paragraph's
    lines are wrapped, sentences are tried before lines. A heading stays with the paragraph after it.
    """
    text = LONG_WORD.sub("", INLINE_DATA.sub("", text))
    text = re.sub(r"(?m)^(#{1,6} .*)\n\s*\n", r"\1\n", text)
    paragraphs = [paragraph for part in re.split(r"\n\s*\n", text) if (paragraph := part.strip())]
    text = "\n\n".join(paragraphs)
    pieces: list[str] = []
    at = first = last = 0
    for paragraph in paragraphs:
        for start, end in _parts(paragraph, ("", LINES, WORDS) if _is_wrapped(paragraph) else (LINES, "", WORDS)):
            if last and at + end - first > MOST:
                pieces.append(text[first:last].rstrip())
                last = 0
            first, last = (first if last else at + start), at + end
        at += len(paragraph) + 2
    return [*pieces, text[first:last].rstrip()] if last else pieces


def _parts(text: str, cuts: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yields spans of parts: matches of the first pattern (empty: sentences); long ones are cut by the next."""
    if len(text) <= MOST:
        yield 0, len(text)
        return
    for start, end in (match.span() for match in re.finditer(cuts[0], text)) if cuts[0] else split_sentences(text):
        for first, last in _parts(text[start:end], cuts[1:]):
            yield start + first, start + last


def _is_wrapped(paragraph: str) -> bool:
    """Returns true if many lines begin with a lower-case letter after a line that is not short."""
    lines = paragraph.split("\n")
    least = max(map(len, lines)) / 2
    wrapped = sum(
        len(line) > least and after.lstrip()[:1].islower() and after.split(maxsplit=1)[0][-1] != ":"  # a speaker
        for line, after in itertools.pairwise(lines)
    )
    return 3 * wrapped > len(lines) - 1


def _read(folder: str, name: str) -> tuple[str, list[str], dict[str, Scalar]]:
    """Returns title, passages and front matter of a document; raises EndxError with the reason to skip it."""
    file, stem, ending = os.path.join(folder, name), pathlib.PurePath(name).stem, os.path.splitext(name.lower())[1]
    if ending not in ENDINGS and not os.path.isdir(file):
        raise EndxError("of another type")
    if not os.path.isfile(file):
        raise EndxError("that are no files, links to nothing, or folders that can't be read")
    if CONTROL.search(name) or re.search("[\ud800-\udfff]", name):
        raise EndxError("with names that hold control characters or are not UTF-8")
    if os.path.getsize(file) > text_files.MOST:
        raise EndxError(f"over {text_files.MOST:,} bytes")
    data, kind = b"", ending[1:].upper()
    try:
        data = pathlib.Path(file).read_bytes()
        is_text = ending not in pdf_files.PACKAGES or data.startswith(json_files.POINTER.encode())
        text = _decoded(data) if is_text else pdf_files.read_in_process(file)
        text = INLINE_DATA.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
    except ImportError:
        raise EndxError(f"in {kind}, which needs {install('documents')}") from None
    except TimeoutError:
        raise EndxError(f"that take too much time or memory as {kind}: convert them to text") from None
    except OSError as error:
        raise EndxError(f"that can't be read: {error.strerror}") from None
    except (ValueError, LookupError):
        unreadable = ending in pdf_files.PACKAGES
        reason = f"can't be read as {kind}" if unreadable else f"are not UTF-8: {text_files.conversion(data)}"
        raise EndxError(f"that {reason}") from None
    if text.startswith(json_files.POINTER):
        raise EndxError("that are Git LFS pointers: run git lfs pull")
    fields: dict[str, Scalar] = {}
    patterns = [FRONT_MATTER] * (ending != ".txt") + [HEADER] * (ending[:3] in (".md", ".ma", ".rs"))
    if front := next(filter(None, (pattern.match(text) for pattern in patterns)), None):
        fields, text = dict(_fields(front["fields"])), text[front.end() :]
    if ending.startswith(".htm") or ending in pdf_files.PAGES:
        page = _Page()
        page.feed(text + "<p>")  # ends the last text; `close` takes quadratic time for broken markup
        text = "".join(page.parts)
    if ending == ".adoc":  # as Markdown
        text = ADOC.sub(lambda m: "#" * len(m["level"] or "") or (m["fence"] and f"```\n{m['code']}```") or "", text)
    named = {name.casefold(): str(value) for name, value in fields.items()}
    given_title = next((named[key] for key in TITLES if key in named), "")
    title, text = _without_title(LONG_WORD.sub("", text), given_title[:200], rst=ending == ".rst")
    if not (texts := split_passages(text)):
        raise EndxError("without text")
    if len(name.encode()) > LONGEST_ID:
        raise EndxError(f"whose ids, their paths, would have over {LONGEST_ID} bytes")
    return title or stem, texts, fields


def _decoded(data: bytes) -> str:
    """Returns a text in UTF-8, UTF-16 with a byte-order mark, or the encoding that its beginning declares."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16")
    declared = DECLARED.search(data[:4096])
    name = declared[1].decode().lower() if declared else "utf-8"
    try:
        return data.decode(name if b"\x1b$" in data else "utf-8-sig")  # ISO-2022 is valid UTF-8
    except UnicodeDecodeError:
        return data.decode(WIDER.get(name, name))


def _fields(front: str) -> Iterator[tuple[str, Scalar]]:
    """Yields the fields of a front matter that hold one text or truth value."""
    for name, value in FIELD.findall(front):
        value = re.sub(r"^[>|][+-]?\d?\s", "", " ".join(value.split()))
        if quoted := re.fullmatch(r"""(["'])(.*)\1(?:\s#.*)?""", value):
            value = quoted[2].replace("''" if quoted[1] == "'" else '\\"', quoted[1])
        else:
            value = "" if re.match(r"[\[{&*!]|- |(?:null|~)\s*(?:#|$)", value) else re.sub(r"(?:^|\s)#.*", "", value)
        if value:
            yield name, value == "true" if value in ("true", "false") else value


def _without_title(text: str, title: str, *, rst: bool) -> tuple[str, str]:
    """Returns the title (`title`, else the first heading) and the text without it, with headings as in Markdown."""
    titles, styles = [title] * bool(title), [] if rst else ["=", "-"]

    def replace(match: re.Match) -> str:
        parts = match.groupdict()
        if parts.get("fence") or (rst and len(parts["line"]) < min(4, len(parts["text"]))):
            return match[0]
        level, heading = 1, parts.get("first") or re.sub("<[^>]*>", "", parts.get("html") or "")
        if style := parts["line"] and (parts.get("over", "") or "")[:1] + parts["line"][0]:
            heading, styles[len(styles) :] = parts["text"], [style] * (style not in styles)
            level = min(styles.index(style) + 1, 6)
        heading = re.sub(r"\s+#+$|\s*\{/?\*?#?[\w-]+\*?/?\}$|:[\w:.-]{1,99}:(?=`)", "", " ".join(heading.split()))
        if level == 1 and heading and titles in ([], [heading]):
            titles[:] = [heading, ""]
            return ""
        return f"{'#' * level} {heading}"

    text = (RST if rst else MARKDOWN).sub(replace, RST_SKIPPED.sub("", text) if rst else text)
    return (titles[0][:200] if titles else ""), text


class _Page(HTMLParser):
    """HTML parser that collects the text in `parts`, with headings as in Markdown."""

    def __init__(self):
        super().__init__()
        self.parts: list[str] = []
        self._heading = ""  # goes before the next text
        self._keeps_lines = self._in_row = False

    def parse_html_declaration(self, i):
        try:
            return super().parse_html_declaration(i)
        except AssertionError:  # Python's parser raises it for `<![` without a name
            return self.parse_bogus_comment(i)

    def handle_starttag(self, tag, attrs):
        self._separate(tag)
        self._heading = HEADINGS.get(tag, self._heading)
        self._keeps_lines |= tag == "pre"

    def handle_endtag(self, tag):
        self._separate(tag)
        self._heading = "" if tag in HEADINGS else self._heading
        self._keeps_lines &= tag != "pre"

    def _separate(self, tag):
        """Ends a paragraph at the tag, unless it is inline; the cells of a row of a table are one paragraph."""
        self._in_row = tag in CELLS or (self._in_row and tag not in ("tr", "table", "li", *HEADINGS))
        self.parts.append("" if INLINE.fullmatch(tag) else " " if self._in_row else "\n\n")

    def handle_data(self, data):
        text = "" if self.cdata_elem in ("script", "style") else data
        text = text if self._keeps_lines else re.sub(r"\s+", " ", text)
        if text.strip():
            text, self._heading = self._heading + text, ""
        self.parts.append(text)
