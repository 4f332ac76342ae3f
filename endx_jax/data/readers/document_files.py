"""Reader of a folder of documents (Markdown, reStructuredText, text, HTML; PDF with the extra `pdf`) as passages."""

import contextlib
import glob
import itertools
import os
import pathlib
import re
import textwrap
from collections.abc import Callable, Iterator
from html.parser import HTMLParser

from endx_jax import json_files
from endx_jax.data.readers import pdf_files, shards, text_files
from endx_jax.data.sets.documents import CONTROL, LONGEST_ID, Document, Scalar, passages_of
from endx_jax.data.sets.paragraphs import split_sentences
from endx_jax.errors import EndxError

ENDINGS = (".md", ".mdx", ".markdown", ".rst", ".txt", ".html", ".htm", ".pdf")
# Maximum characters of a passage, about 130 English words.
MOST = 800
# Elements of HTML that do not end a paragraph; headings in HTML and Markdown.
INLINE = re.compile("a|abbr|b|cite|code|em|font|i|kbd|mark|q|s|small|span|strong|sub|sup|u|var")
HEADINGS = {"title": "# ", **{f"h{level}": "#" * level + " " for level in range(1, 7)}}
# Front matter of Markdown in YAML or TOML, one of its fields, and the fields that are titles, the first of them first.
FRONT_MATTER = re.compile(
    r"\s*(---|\+\+\+)[ \t]*\n(?P<fields>(?:[ \t]*\n|#.*\n)*(?:[\w.-]+[ \t]*[:=](?s:.*?)\n)?)"
    r"(?:\1|\.\.\.)[ \t]*(?:\n|\Z)"
)
# Fields without such lines around them, one of them a title, as of Pelican, MultiMarkdown, Nikola, docutils and PEPs.
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


def names_in(path: str) -> list[str]:
    """Returns the names of all files at a path if they are documents; none if not.

    A folder is one of documents if it has more than three times as many of them as data files.
    """
    names = _names(path) if os.path.isdir(path) else glob.glob(path) or [path] * os.path.exists(path)
    documents = sum(name.lower().endswith(ENDINGS) for name in names)
    data = sum(text_files.uncompressed(name).endswith((".json", *shards.ENDINGS)) for name in names)
    return names if (documents > 3 * data if os.path.isdir(path) else documents == len(names)) else []


def passages(folder: str, names: list[str], say: Callable[[str], object]) -> Iterator[tuple[str, Document]]:
    """Yields (file, passage) for the files of `names_in` a folder.

    A passage is whole paragraphs, or sentences of a long one. Its text begins with the document's title: that of its
    front matter, else the first heading, else the file's name. Metadata are `title`, `source`, the path in the folder,
    and the texts and truth values of the front matter; the id is the path. At the end, `say` receives a line with the
    numbers of files, passages and skipped files, with reasons.

    Raises:
      EndxError: no file has a text.
    """
    skipped: dict[str, list[str]] = {}
    files = count = 0
    for name in names:
        try:
            title, texts, fields = _read(folder, name)
        except EndxError as reason:
            skipped.setdefault(str(reason), []).append(name)
            continue
        files, count = files + 1, count + len(texts)
        whole = Document(name, "", fields | {"title": title, "source": name})
        yield from ((os.path.join(folder, name), passage) for passage in passages_of(whole, texts))
    reasons = ", ".join(
        f"{len(names):,} {reason} (such as {', '.join(f'{name!a:.100}' for name in names[:5])})"
        for reason, names in skipped.items()
    )
    if not count:
        raise EndxError(f"{folder}: no text in its documents ({', '.join(ENDINGS)}); skipped {reasons}")
    say(f"{folder}: {files:,} files, split into {count:,} passages{reasons and f'; skipped {reasons}'}")


def split_passages(text: str) -> list[str]:
    """Splits a text into passages of at most about `MOST` characters; a heading stays with the paragraph after it."""
    pieces: list[str] = []
    text = re.sub(r"(?m)^(#{1,6} .*)\n\s*\n", r"\1\n", text)
    for paragraph in filter(None, map(str.strip, re.split(r"\n\s*\n", text))):
        spans = split_sentences(paragraph) if len(paragraph) > MOST else [(0, len(paragraph))]
        sentences = [paragraph[a:b].expandtabs() for a, b in spans]
        wrapped = ([s] if len(s) <= MOST else textwrap.wrap(s, MOST, replace_whitespace=False) for s in sentences)
        for n, piece in enumerate(itertools.chain.from_iterable(wrapped)):
            if pieces and len(pieces[-1]) + len(piece) <= MOST:
                pieces[-1] += (" " if n else "\n\n") + piece
            else:
                pieces.append(piece)
    return pieces


def _names(folder: str) -> list[str]:
    """Returns the paths of files in a folder that are not hidden, sorted; links to folders are not followed."""
    paths = []
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths += [os.path.relpath(os.path.join(place, name), folder) for name in names if not name.startswith(".")]
    return sorted(paths)


def _read(folder: str, name: str) -> tuple[str, list[str], dict[str, Scalar]]:
    """Returns title, passages and front matter of a document; raises EndxError with the reason to skip it."""
    file, stem, ending = os.path.join(folder, name), pathlib.PurePath(name).stem, os.path.splitext(name.lower())[1]
    if ending not in ENDINGS:
        raise EndxError("of another type")
    if os.path.islink(file) or not os.path.isfile(file):
        raise EndxError("that are links or no files")
    if CONTROL.search(name) or re.search("[\ud800-\udfff]", name):
        raise EndxError("with names that hold control characters or are not UTF-8")
    if os.path.getsize(file) > text_files.MOST:
        raise EndxError(f"over {text_files.MOST:,} bytes")
    with contextlib.suppress(OSError), open(file, "rb") as stream:  # the read below raises it again
        if stream.read(40).startswith(json_files.POINTER.encode()):
            raise EndxError("that are Git LFS pointers: run git lfs pull")
    data = b""
    try:
        data = pathlib.Path(file).read_bytes()
        text = pdf_files.read_pdf(file) if ending == ".pdf" else data.decode("utf-8-sig")
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    except ImportError:
        raise EndxError('in PDF, which needs pip install "endx_jax[pdf]"') from None
    except TimeoutError:
        raise EndxError("that take too much time or memory as PDF: convert them to text by pdftotext") from None
    except OSError as error:
        raise EndxError(f"that can't be read: {error.strerror}") from None
    except ValueError:
        reason = "can't be read as PDF" if ending == ".pdf" else f"are not UTF-8: {text_files.conversion(data)}"
        raise EndxError(f"that {reason}") from None
    fields: dict[str, Scalar] = {}
    if front := FRONT_MATTER.match(text) or (HEADER.match(text) if ending[:3] in (".md", ".ma", ".rs") else None):
        fields, text = dict(_fields(front["fields"])), text[front.end() :]
    if ending.startswith(".htm"):
        page = _Page()
        page.feed(text + "<p>")  # ends the last text; `close` takes quadratic time for broken markup
        text = "".join(page.parts)
    named = {name.casefold(): str(value) for name, value in fields.items()}
    given_title = next((named[key] for key in TITLES if key in named), "")
    title, text = _without_title(text, given_title[:200], rst=ending == ".rst")
    if not (texts := split_passages(text)):
        raise EndxError("without text")
    if len(name.encode()) > LONGEST_ID:
        raise EndxError(f"whose ids, their paths, would have over {LONGEST_ID} bytes")
    return title or stem, texts, fields


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

    def parse_html_declaration(self, i):
        try:
            return super().parse_html_declaration(i)
        except AssertionError:  # Python's parser raises it for `<![` without a name
            return self.parse_bogus_comment(i)

    def handle_starttag(self, tag, attrs):
        self.parts.append("" if INLINE.fullmatch(tag) else "\n\n")
        self._heading = HEADINGS.get(tag, self._heading)

    def handle_endtag(self, tag):
        self.parts.append("" if INLINE.fullmatch(tag) else "\n\n")
        self._heading = "" if tag in HEADINGS else self._heading

    def handle_data(self, data):
        text = "" if self.cdata_elem in ("script", "style") else re.sub(r"\s+", " ", data)
        if text.strip():
            text, self._heading = self._heading + text, ""
        self.parts.append(text)
