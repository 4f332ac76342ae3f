"""Text of PDF, Word, PowerPoint, Excel and EPUB files, each read in a process with limits.

Small files can take hours or exhaust the memory. Run as a script, this file is that process. It imports nothing of this
package.
"""

import contextlib
import html
import importlib.util
import json
import os
import pathlib
import posixpath
import subprocess
import sys
import urllib.parse
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from xml.etree import ElementTree

# Packages that read these endings; Python alone reads EPUB.
PACKAGES = {".pdf": "pypdf", ".docx": "mammoth", ".pptx": "pptx", ".xlsx": "openpyxl", ".epub": ""}
PAGES = (".docx", ".epub")  # whose text is HTML
# Limits of a file: seconds of CPU time, which do not depend on the machine's load, and bytes. Text takes 3 s per MB.
SECONDS, SECONDS_PER_MB, MOST_MEMORY = 10, 5, 1_500_000_000
MOST_TEXT = 32_000_000  # characters of the text, which a small packed file can exceed


def read_in_process(file: str) -> str:
    """Returns the text of a file with an ending of `PACKAGES`.

    Raises:
      ImportError: the package for its ending is not installed.
      TimeoutError: the file takes too much time or memory, or its text is too long.
      ValueError: the file can't be read.
    """
    package = PACKAGES[pathlib.PurePath(file).suffix.lower()]
    if package and importlib.util.find_spec(package) is None:
        raise ImportError(package)
    seconds = SECONDS + SECONDS_PER_MB * os.path.getsize(file) / 1e6
    # With -P, the modules beside this file do not replace those that packages import. Their warnings are discarded.
    command = [sys.executable, "-P", __file__, file, str(seconds), str(MOST_MEMORY)]
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    if ended.returncode:
        raise TimeoutError
    return json.loads(ended.stdout)


def _main(file: str, seconds: str, memory: str) -> None:
    """Prints the text as JSON, or nothing if it can't be read; ends with a status other than 0 at a limit."""
    if os.name == "posix":
        import resource
        import signal

        signal.setitimer(signal.ITIMER_PROF, float(seconds))
        with contextlib.suppress(ValueError, OSError):  # there is a lower limit, or the system has none
            resource.setrlimit(resource.RLIMIT_AS, (int(memory), int(memory)))
    readers = {".pdf": _pdf, ".docx": _word, ".pptx": _slides, ".xlsx": _sheets, ".epub": _book}
    try:
        text = "\n\n".join(readers[pathlib.PurePath(file).suffix.lower()](file))
        if len(text) > MOST_TEXT:
            sys.exit(1)
        print(json.dumps(text.encode("utf-8", "replace").decode()))
    except MemoryError:
        raise
    except Exception:  # the packages raise errors of many types
        pass


def _pdf(file: str) -> Iterator[str]:
    """Yields the pages."""
    import pypdf

    for page in pypdf.PdfReader(file).pages:
        yield page.extract_text()


def _word(file: str) -> Iterator[str]:
    """Yields the document as HTML, without images."""
    import mammoth

    with open(file, "rb") as stream:
        without = mammoth.images.img_element(lambda image: {})
        yield mammoth.convert_to_html(stream, convert_image=without, style_map="p[style-name='Title'] => h1").value


def _slides(file: str) -> Iterator[str]:
    """Yields the texts, tables and notes of all slides; titles as headings of Markdown."""
    import pptx

    for slide in pptx.Presentation(file).slides:
        title, waiting = slide.shapes.title, [*slide.shapes]
        while waiting:
            shape = waiting.pop(0)
            waiting[:0] = getattr(shape, "shapes", ())  # of a group
            if shape.has_text_frame:
                text = shape.text_frame.text.replace("\v", "\n").strip()
                is_title = title is not None and shape.shape_id == title.shape_id
                yield f"## {' '.join(text.split())}" if is_title and text else text
            elif getattr(shape, "has_table", False):
                yield _table([cell.text for cell in row.cells] for row in shape.table.rows)
        if slide.has_notes_slide:
            yield slide.notes_slide.notes_text_frame.text


def _sheets(file: str) -> Iterator[str]:
    """Yields the values of all sheets; their names as headings of Markdown."""
    import openpyxl

    for sheet in openpyxl.load_workbook(file, read_only=True, data_only=True).worksheets:
        yield f"## {sheet.title}"
        yield _table(["" if cell is None else str(cell) for cell in row] for row in sheet.iter_rows(values_only=True))


def _table(rows: Iterable[Sequence[str]]) -> str:
    """Returns a line for each row that is not empty."""
    lines = (" | ".join(" ".join(cell.split()) for cell in row if cell.strip()) for row in rows)
    return "\n".join(filter(None, lines))


def _book(file: str) -> Iterator[str]:
    """Yields the title and the chapters of an EPUB as HTML, in their order."""
    with zipfile.ZipFile(file) as book:
        container = ElementTree.fromstring(book.read("META-INF/container.xml"))
        about = next(root.attrib["full-path"] for root in container.iterfind(".//{*}rootfile"))
        package = ElementTree.fromstring(book.read(about))
        yield f"<h1>{html.escape(package.findtext('.//{*}metadata/{*}title') or '')}</h1>"
        names = {item.attrib["id"]: item.attrib["href"] for item in package.iterfind("{*}manifest/{*}item")}
        for item in package.iterfind("{*}spine/{*}itemref"):
            name = posixpath.join(posixpath.dirname(about), urllib.parse.unquote(names[item.attrib["idref"]]))
            yield book.read(posixpath.normpath(name)).decode("utf-8", "replace")


if __name__ == "__main__":
    _main(*sys.argv[1:])
