"""Reader of a folder of documents (Markdown, text, HTML; PDF with the extra `pdf`) as a corpus of passages."""

import glob
import io
import os
import pathlib
import re
import textwrap
from collections.abc import Callable, Iterator
from html.parser import HTMLParser

from endx_jax.data.documents import LONGEST_ID, Document
from endx_jax.data.paragraphs import split_sentences
from endx_jax.data.readers import shards, text_files
from endx_jax.errors import EndxError

ENDINGS = (".md", ".markdown", ".txt", ".html", ".htm", ".pdf")
# Maximum characters of a passage, about 130 English words.
MOST = 800
# Elements of HTML that do not end a paragraph; headings in HTML and Markdown.
INLINE = re.compile("a|abbr|b|cite|code|em|font|i|kbd|mark|q|s|small|span|strong|sub|sup|u|var")
HEADINGS = {"title": "# ", **{f"h{level}": "#" * level + " " for level in range(1, 7)}}


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

    A passage is whole paragraphs, or sentences of a long one. Its text begins with the document's title: the first
    heading, else the file's name. Metadata are `title` and `source`, the path in the folder; the id adds a number to
    the path. At the end, `say` receives a line with the numbers of files, passages and skipped files, with reasons.
    """
    skipped: dict[str, list[str]] = {}
    files = count = 0
    for name in names:
        try:
            title, texts = _read(folder, name)
        except EndxError as reason:
            skipped.setdefault(str(reason), []).append(name)
            continue
        files, count = files + 1, count + len(texts)
        for n, text in enumerate(texts, 1):
            document = Document(f"{name}#{n}", f"{title} {text}", {"title": title, "source": name})
            yield os.path.join(folder, name), document
    reasons = ", ".join(f"{len(names):,} {reason} (such as {names[0]!a:.100})" for reason, names in skipped.items())
    say(f"{folder}: {files:,} files, split into {count:,} passages{reasons and f'; skipped {reasons}'}")


def split_passages(text: str) -> list[str]:
    """Splits a text into passages of at most about `MOST` characters; a heading stays with the paragraph after it."""
    found: list[str] = []
    text = re.sub(r"(?m)^(#{1,6} .*)\n\s*\n", r"\1\n", text)
    for paragraph in map(str.strip, re.split(r"\n\s*\n", text)):
        spans = split_sentences(paragraph) if len(paragraph) > MOST else [(0, len(paragraph))]
        pieces = [part for a, b in spans for part in textwrap.wrap(paragraph[a:b], MOST, replace_whitespace=False)]
        for n, piece in enumerate(pieces):
            if found and len(found[-1]) + len(piece) <= MOST:
                found[-1] += (" " if n else "\n\n") + piece
            else:
                found.append(piece)
    return found


def _names(folder: str) -> list[str]:
    """Returns the paths of files in a folder that are not hidden, sorted; links to folders are not followed."""
    found = []
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [os.path.relpath(os.path.join(place, name), folder) for name in names if not name.startswith(".")]
    return sorted(found)


def _read(folder: str, name: str) -> tuple[str, list[str]]:
    """Returns title and passages of a document; raises EndxError with the reason for which it is skipped."""
    file, (stem, ending) = os.path.join(folder, name), os.path.splitext(os.path.basename(name).lower())
    if ending not in ENDINGS:
        raise EndxError("of another type")
    if os.path.islink(file) or not os.path.isfile(file) or not name.isprintable() or len(name) > LONGEST_ID // 5:
        raise EndxError("that are links, no files or have names that can't be ids")
    if os.path.getsize(file) > text_files.MOST:
        raise EndxError(f"over {text_files.MOST:,} bytes")
    try:
        data = pathlib.Path(file).read_bytes()
        if ending == ".pdf":
            import pypdf

            pages = pypdf.PdfReader(io.BytesIO(data)).pages
            data = "\n\n".join(page.extract_text() for page in pages).encode("utf-8", "replace")
        text = data.decode("utf-8-sig").replace("\r\n", "\n")
    except ImportError:
        raise EndxError('in PDF, which needs pip install "endx_jax[pdf]"') from None
    except Exception:  # pypdf raises errors of many types
        raise EndxError(f"that can't be read as {'PDF' if ending == '.pdf' else 'UTF-8'}") from None
    if ending.startswith(".htm"):
        page = _Page()
        page.feed(text + "<p>")  # ends the last text; `close` takes quadratic time for broken markup
        text = "".join(page.parts)
    title = stem
    if heading := re.search(r"(?m)^# +(\S.*)$", re.sub(r"(?s)```.*?```", "", text)):
        title, text = heading[1].strip()[:200], text.replace(heading[0], "", 1)
    if not (texts := split_passages(text)):
        raise EndxError("without text")
    return title, texts


class _Page(HTMLParser):
    """HTML parser that collects the text in `parts`, with headings as in Markdown."""

    def __init__(self):
        super().__init__()
        self.parts: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.parts.append("" if INLINE.fullmatch(tag) else "\n\n" + HEADINGS.get(tag, ""))

    def handle_endtag(self, tag):
        self.parts.append("" if INLINE.fullmatch(tag) else "\n\n")

    def handle_data(self, data):
        self.parts.append("" if self.cdata_elem in ("script", "style") else re.sub(r"\s+", " ", data))
