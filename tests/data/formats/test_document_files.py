import io
import os
import textwrap
import time
import zipfile

import pytest
from helpers import write_files
from refusals import check_refusal

from endx_jax.data import read
from endx_jax.data.formats import document_files, pdf_files, read_corpus, text_files
from endx_jax.data.formats.document_files import names_in, split_passages


def documents(folder):
    lines = []
    found = list(read_corpus(folder, say=lines.append))
    (line,) = lines
    return found, line


def test_a_folder_is_split_into_passages_with_title_and_source(tmp_path):
    page = """<html><head><title>Caf&eacute; &amp; bar</title><style>p {}</style><script>var x = "<p>";</script></head>
    <body><h1>Drinks</h1><p>Hot <b>te</b>a,
    cold water.</p><ul><li>one</li><li>two</li></ul></body></html>"""
    markdown = "\ufeffIntro.\r\n\r\n```\r\n# a comment\r\n```\r\n\r\n# Install it\r\n\r\nRun it.\r\n"
    files = {"b/page.HTML": page, "a.md": markdown, "b/notes.txt": "Notes.\n\nMore.", ".git/x.md": "hidden"}
    found, line = documents(write_files(tmp_path, files))
    assert [(d.id, d.text) for d in found] == [
        ("a.md", "Install it Intro.\n\n```\n# a comment\n```\n\nRun it."),
        ("b/notes.txt", "notes Notes.\n\nMore."),
        ("b/page.HTML", "Café & bar # Drinks\nHot tea, cold water.\n\none\n\ntwo"),
    ]
    assert found[2].metadata == {"title": "Café & bar", "source": "b/page.HTML"}
    assert line == f"{tmp_path}: 3 files, split into 3 passages"


FRONT = """---
# of the site
title: "Say \\"hi\\": it's easy"   # quoted
lang: en
year: 2020
draft: false
tags: [a, b]
description: >-
  Two
  lines
none: null
list:
- a
params:
  deep: 1
empty:
---
"""


@pytest.mark.parametrize(
    ("name", "text", "title", "passage"),
    [
        ("a.md", f"{FRONT}\n# Hi\n\nBody.", 'Say "hi": it\'s easy', "# Hi\nBody."),
        ("a.md", "---\nid: 7\nquestion: 'Where''s the key?'\n...\nUnder it.", "Where's the key?", "Under it."),
        ("a.md", '+++\ntitle = "TOML"\nweight = 3\n+++\n\nBody.', "TOML", "Body."),
        ("a.md", '+++\na = """\nIn no\nlist\n"""\n[menu]\n+++\n\nBody.', "a", "Body."),
        ("a.md", '---\ndate created: 1\n"b": [\n  c\n]\ntitle: T\n---\nBody.', "T", "Body."),
        ("a.md", "---\nBy: Ann\n\nWe met.\n\n---\n\nEnd.", "a", "---\nBy: Ann\n\nWe met.\n\n---\n\nEnd."),
        ("a.md", "---\nSee: it\nhttps://x.org\n---\nEnd.", "a", "---\nSee: it\nhttps://x.org\n---\nEnd."),
        ("a.txt", "---\nQ: Who?\nA: I.\n---\nQ: x", "a", "---\nQ: Who?\nA: I.\n---\nQ: x"),
        ("a.html", "---\ntitle: Jekyll's\n---\n<h1>Head</h1><p>Body.", "Jekyll's", "# Head\nBody."),
        ("a.md", "---\nTitle: Hugo's\n---\nBody.", "Hugo's", "Body."),
        (
            "a.rst",
            "PEP: 8\nTitle: Style\nAuthor: A,\n  B\nPost-History:\n\n\nAbstract\n====\n\nx",
            "Style",
            "# Abstract\nx",
        ),
        ("a.md", "Date: 2010-12-03 10:20\nTitle: Pelican\n\nBody.", "Pelican", "Body."),
        ("a.rst", ":title: docutils\n:date: 1\n\nBody.", "docutils", "Body."),
        ("a.rst", ".. title: Nikola\n.. slug: x\n\nBody.", "Nikola", "Body."),
        ("a.md", "Price: 3\nColour: red\n\nTitle: x\n\nBody.", "a", "Price: 3\nColour: red\n\nTitle: x\n\nBody."),
        ("Der Anfang.MD", "Body.", "Der Anfang", "Body."),
        ("a.md", "Title: all there is", "a", "Title: all there is"),
        ("a.txt", "Title: T\nPrice: 3\n\nBody.", "a", "Title: T\nPrice: 3\n\nBody."),
        ("a.mdx", "---\n---\n# Title {#its-id}\n\nBody.", "Title", "Body."),
        ("a.md", "---\ntitle: Same\n---\n# Same\n\nBody.", "Same", "Body."),
        ("a.md", "---\n\nA line.\n\n---\n\nBody.", "a", "---\n\nA line.\n\n---\n\nBody."),
        ("a.md", "Set *up*\n======\n\nIntro.\n\nThen\n---\n\nEnd.", "Set *up*", "Intro.\n\n## Then\nEnd."),
        ("a.md", "- item\n---\n\na | b\n--- | ---\n", "a", "- item\n---\n\na | b\n--- | ---"),
        ("a.md", "  ~~~sh\n# rm\n~~~\n\nx\n\n# T #\n\ny", "T", "~~~sh\n# rm\n~~~\n\nx\n\ny"),
        ("a.md", "````\n```\n# no\n````\n``` x ```\n\n# T\n\ny", "T", "````\n```\n# no\n````\n``` x ```\n\ny"),
        ("a.md", '<H1 align="center">\n <img src="x"> My <b>tool</b>\n</H1>\n\nIt.', "My tool", "It."),
        ("a.md", " # Title\r\rBody.", "Title", "Body."),
        (
            "a.adoc",
            "[[top]]\n= Head\nAnn <a@b.c>\n:toc:\n\n[#x]\n== Part\n\n[source,java]\n----\n// said\n== x\n----\n"
            "include::b.adoc[]\n// not said\n\n====\nIt: see [1].\n====\n\nOld\n---\n\nEnd.",
            "Head",
            "Ann <a@b.c>\n\n## Part\n```\n// said\n== x\n```\n\nIt: see [1].\n\n## Old\nEnd.",
        ),
        ("a.html", "<title> </title><h1><div><img src=x>Head</div></h1><p>It.", "Head", "It."),
        (
            "a.rst",
            ":tocdepth: 2\n\n.. _label:\n.. a comment\n   of two lines\n\n======\n:mod:`x`\n======\n\n"
            ".. toctree::\n   :glob:\n\n   b\n\nPart\n----\n\nText::\n\n    # code\n\n.. note:: Mind.\n\n"
            "Next\n----\n\nDeep\n~~~~\n\nx",
            "`x`",
            "## Part\nText::\n\n# code\n\n.. note:: Mind.\n\n## Next\n### Deep\nx",
        ),
    ],
)
def test_titles_are_found_and_their_markup_is_not_text(tmp_path, name, text, title, passage):
    (found,), _ = documents(write_files(tmp_path, {name: text}))
    assert (found.metadata["title"], found.text) == (title, f"{title} {passage}")


def test_fields_of_front_matter_are_metadata(tmp_path):
    (found,), _ = documents(write_files(tmp_path, {"a.md": f"{FRONT}Body."}))
    fields = {"lang": "en", "year": "2020", "draft": False, "description": "Two lines", "source": "a.md"}
    assert found.metadata == fields | {"title": 'Say "hi": it\'s easy'}


def test_a_path_may_be_as_long_as_an_id(tmp_path):
    folder = "/".join(["part-" * 30] * 3)
    files = {f"{folder}/{'é' * n}.md": "x" for n in (20, 28, 29)}  # ids of 496, 512 and 514 bytes
    found, line = documents(write_files(tmp_path, files))
    assert [len(document.id.encode()) for document in found] == [len(name.encode()) for name in files][:2]
    assert "skipped 1 whose ids, their paths, would have over 512 bytes (such as 'part-" in line


def test_what_is_skipped_is_said(tmp_path):
    files = {"a.md": "a", "latin.txt": b"\xe9", "empty.md": "# Title", "x.png": b"", "y.py": "", "large.txt": ""}
    folder = write_files(tmp_path / "docs", files)
    os.truncate(folder / "large.txt", text_files.MOST + 1)
    lfs = "version https://git-lfs.github.com/spec/v1"
    write_files(folder, {"line\nbreak.md": "text", "old.pdf": b"no PDF", "lfs.md": lfs})
    os.symlink("nothing", folder / "link.md")
    os.mkfifo(folder / "pipe.md")
    found, line = documents(folder)
    assert [d.text for d in found] == ["a a"]
    assert line.startswith(f"{folder}: 1 file, split into 1 passage; skipped 1 without text (such as 'empty.md'), ")
    for reason in (
        "1 that are Git LFS pointers: run git lfs pull (such as 'lfs.md')",
        "1 over 32,000,000 bytes (such as 'large.txt')",
        '1 that are not UTF-8: save it as UTF-8 (in Excel: "CSV UTF-8"), or run iconv -f WINDOWS-1252 -t UTF-8 OLD',
        "2 that are no files, links to nothing, or folders that can't be read (such as 'link.md', 'pipe.md')",
        "1 with names that hold control characters or are not UTF-8 (such as 'line\\nbreak.md')",
        "2 of another type (such as 'x.png', 'y.py')",
    ):
        assert reason in line
    assert "old.pdf" in line


def test_links_are_read_once(tmp_path):
    write_files(tmp_path, {"map/..2026/a.md": "a", "hub/blobs/1f3a": "a", "other/b.md": "b", "docs/a.md": "a"})
    os.symlink("..2026", tmp_path / "map" / "..data")
    os.symlink("..data/a.md", tmp_path / "map" / "a.md")
    (tmp_path / "hub" / "abc").mkdir()
    os.symlink("../blobs/1f3a", tmp_path / "hub" / "abc" / "a.md")
    for name, target in {"more": "../other", "again": "../other", "circle": ".", "up": "..", "z.md": "a.md"}.items():
        os.symlink(target, tmp_path / "docs" / name)
    for folder, names, said in (
        ("map", ["a.md"], "1 file, split"),
        ("hub/abc", ["a.md"], "1 file, 1 of them by links to other folders, split"),
        ("docs", ["a.md", "again/b.md"], "2 files, 1 of them by links to other folders, split"),
    ):
        found, line = documents(tmp_path / folder)
        assert ([d.metadata["source"] for d in found], line.count(said)) == (names, 1)


@pytest.mark.parametrize(
    ("head", "encoding"),
    [
        ("", "utf-16"),
        ('<meta charset="windows-1252">', "cp1252"),
        ("<meta http-equiv='Content-Type' content='text/html; charset=ISO-8859-1'>", "cp1252"),
        ('metadata:a/b,c <?xml version="1.0" encoding="iso-8859-1"?>', "latin-1"),
        ("<meta charset=windows-1252>", "utf-8"),  # an earlier program converted it
        ("<meta charset=iso-2022-jp>", "iso2022_jp"),
        ("<meta charset=gb2312>", "gb18030"),
        (".. -*- coding: latin-1 -*-\n\n", "latin-1"),
    ],
)
def test_declared_encodings_are_used(tmp_path, head, encoding):
    text = "水" if "jp" in encoding else "é"
    name = "a.rst" if head.startswith("..") else "a.html"
    (found,), _ = documents(write_files(tmp_path, {name: f"{head}{text}".encode(encoding)}))
    assert found.text in (f"a {text}", f"a metadata:a/b,c {text}")
    for declared in ("punycode", "nope", "utf-8"):
        (tmp_path / name).write_bytes(b"<meta charset=%s>\xe9" % declared.encode())
        check_refusal(lambda: documents(tmp_path), "1 that are not UTF-8: save it")


IMAGE = "data:image/png;base64," + "x7+/" * 1000


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.md", f"![photo]({IMAGE})"),
        ("a.md", f"![photo][p]\n\n[p]: {IMAGE}"),
        ("a.md", f'<img alt="photo" src="{IMAGE}"/>'),
        ("a.md", f"---\nimage: {IMAGE}\n---\nphoto"),
        ("a.md", f"# ![photo]({IMAGE})"),
        ("a.md", f"photo {IMAGE[30:]}"),
        ("a.rst", f"photo\n\n.. |p| image:: {IMAGE}"),
        ("a.txt", f"photo\n{IMAGE[30:]}"),
        ("a.html", f"<img src='{IMAGE}'>photo"),
        ("a.html", f"<p>photo {IMAGE[30:]}</p>"),
    ],
)
def test_data_in_a_text_makes_no_passages(tmp_path, name, text):
    (found,), _ = documents(write_files(tmp_path, {name: f"{text}\n\nNext."}))
    assert len(found.text) < 60
    assert "photo" in found.text


@pytest.mark.parametrize(
    "form",
    [
        "| item {} with a long name | {} euro |",
        "- pump {}. It is of series K. Costs {} euro",
        "Room {} in the east wing, extension {}",
        "    value_{} = measure(channel, {})",
        "2026-01-01 12:{} ERROR The disk is full. Waiting for {}",
        "user: What is {}? And why? Tell me more.\nassistant: It is a number between others. It comes before {}.",
    ],
)
def test_lines_are_whole(form):
    text = "\n".join(form.format(n, n + 1000) for n in range(60))
    found = split_passages(f"# Title\n\n{text}\n\nThe end.")
    assert found[0].startswith("# Title\n")
    assert [line for piece in found for line in piece.split("\n") if line][1:-1] == text.split("\n")


def test_sentences_of_wrapped_lines_are_whole():
    words = " ".join(f"A sentence of {'some ' * (n % 7)}words that ends somewhere in a line {n}." for n in range(40))
    found = split_passages(textwrap.fill(words, 80))
    assert all(piece.startswith("A sentence") and piece.endswith(".") for piece in found)
    long = "w" * document_files.MOST
    heading = "## Prices\n| a |\n" + "| b |\n" * 200
    assert split_passages(f"{long[:-5]}\n\n{heading}")[1].startswith("## Prices\n| a |")


@pytest.mark.parametrize(
    "part", [".[", "((((", "<", "# ", "```\n", "|", "| ", "[[", ". A", "é", "a\n", " ", "\n ", "# a\n", "1. \n"]
)
def test_any_text_is_split_in_linear_time(part):
    began = time.process_time()
    split_passages(part * (500_000 // len(part)))
    assert time.process_time() - began < 2  # 0.1 to 0.6 s; with textwrap, the first took 16 s for 4 MB


def test_rows_and_lines_of_html_stay_together(tmp_path):
    rows = "".join(f"<tr><td><p>Pump {n}</p></td>\n<td>{n} euro</td></tr>" for n in range(100))
    found, _ = documents(write_files(tmp_path, {"a.html": f"<table>{rows}</table><pre>a = 1\n  b = 2</pre>"}))
    lines = [" ".join(line.split()) for one in found for line in one.text.removeprefix("a ").split("\n\n")]
    assert (lines[:-1], found[-1].text[-13:]) == ([f"Pump {n} {n} euro" for n in range(100)], "a = 1\n  b = 2")


def test_passages_are_whole_paragraphs_or_sentences_of_bounded_length():
    paragraphs = [f"Paragraph {n} is short, as most are in a text like this one." for n in range(40)]
    found = split_passages("\n\n".join(paragraphs))
    assert [part for passage in found for part in passage.split("\n\n")] == paragraphs
    assert all(document_files.MOST / 2 < len(passage) <= document_files.MOST + 20 for passage in found[:-1])
    sentences = [f"Sentence {n} ends here." for n in range(100)]
    found = split_passages(" ".join(sentences))
    assert " ".join(found) == " ".join(sentences)
    assert all(passage.startswith("Sentence") and passage.endswith("here.") for passage in found)
    assert all(len(passage) <= document_files.MOST for passage in split_passages("word" * 5000))
    long = "w " * (document_files.MOST // 2 - 3)
    assert split_passages(f"{long}\n\n## Head\n\ntext")[1:] == ["## Head\ntext"]  # not at the end of the first
    assert split_passages(" \n\n \n") == []


def test_broken_markup_takes_linear_time(tmp_path):
    parts = ["<", "<!--", "<a ", "<script>", "<![CDATA[", "&#x", "<p>a", "<h1>\n", "<!["]
    parts += ["\n ", "# a\n\n", "```", "a\n=\n", "---\na:", ".. a\n\n", "]\n", "\n\n----\n....", "::[", '+++\na="""\n']
    endings = (".html", ".md", ".rst", ".adoc")
    files = {f"{n}{ending}": part * 10_000 for n, part in enumerate(parts) for ending in endings}
    write_files(tmp_path, files | {"colons.md": "# " + ":" * 100_000})
    began = time.process_time()
    assert "skipped" in documents(tmp_path)[1]
    assert time.process_time() - began < 3  # 0.3 s; with `HTMLParser.close` 5 s


def test_pdf_is_read_with_its_extra_and_skipped_without(tmp_path, monkeypatch):
    pypdf = pytest.importorskip("pypdf")
    write_files(tmp_path, {"a.pdf": pdf("Zebras are striped.")})
    assert pypdf.PdfReader(tmp_path / "a.pdf").pages[0].extract_text().strip() == "Zebras are striped."
    assert [(d.id, d.text) for d in documents(tmp_path)[0]] == [("a.pdf", "a Zebras are striped.")]
    monkeypatch.setitem(__import__("sys").modules, "pypdf", None)
    write_files(tmp_path, {"a.pdf": pdf("text"), "b.md": "b"})
    assert documents(tmp_path)[1].endswith(
        "1 in PDF, which needs pip install -e \".[documents]\" in the checkout of endx_jax (such as 'a.pdf')"
    )


def test_pdf_that_takes_too_much_time_or_memory_is_named_and_left_out(tmp_path, monkeypatch):
    pytest.importorskip("pypdf")
    monkeypatch.setattr(pdf_files, "SECONDS", 1.5)  # of the processor; importing pypdf takes up to 0.5
    monkeypatch.setattr(pdf_files, "SECONDS_PER_MB", 0)
    files = {"bomb.pdf": pdf("a) Tj (" * 400_000), "good.pdf": pdf("Zebras are striped."), "none.pdf": "%PDF"}
    found, line = documents(write_files(tmp_path, files))
    assert [d.id for d in found] == ["good.pdf"]
    assert "skipped 1 that take too much time or memory as PDF: convert them to text" in line
    assert "(such as 'bomb.pdf'), 1 that can't be read as PDF (such as 'none.pdf')" in line
    monkeypatch.setattr(pdf_files, "MOST_MEMORY", 10_000_000)
    write_files(tmp_path / "small", {"a.pdf": pdf("text"), "b.md": "b"})
    assert documents(tmp_path / "small")[1].endswith("as PDF: convert them to text (such as 'a.pdf')")


def docx(file):
    def paragraph(text, style=""):
        styled = f'<w:pPr><w:pStyle w:val="{style}"/></w:pPr>' if style else ""
        return f"<w:p>{styled}<w:r><w:t>{text}</w:t></w:r></w:p>"

    row = "".join(f"<w:tc>{paragraph(text)}</w:tc>" for text in ("legs", "4"))
    body = paragraph("Zoo", "Title") + paragraph("Zebras", "heading 2") + paragraph("Striped.")
    style = '<w:style w:type="paragraph" w:styleId="{0}"><w:name w:val="{0}"/></w:style>'
    parts = {"document": f"<w:body>{body}<w:tbl><w:tr>{row}</w:tr></w:tbl></w:body>"}
    parts["styles"] = style.format("Title") + style.format("heading 2")
    space = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
    with zipfile.ZipFile(file, "w") as book:
        for name, content in parts.items():
            book.writestr(f"word/{name}.xml", f'<w:{name} xmlns:w="{space}">{content}</w:{name}>')


def pptx(file):
    slides = pytest.importorskip("pptx").Presentation()
    slide = slides.slides.add_slide(slides.slide_layouts[1])
    slide.shapes.title.text, slide.placeholders[1].text = "Zebras", "Striped."
    slide.notes_slide.notes_text_frame.text = "Smile."
    slides.save(file)


def xlsx(file):
    book = pytest.importorskip("openpyxl").Workbook()
    book.active.title = "Zoo"
    for row in (["name", "legs"], ["zebra", 4], [None, None], ["=1+1", " "]):
        book.active.append(row)
    book.save(file)


def epub(file, first="<html><title/><h2>One</h2><p>First.</p></html>"):
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as book:
        book.writestr("META-INF/container.xml", '<container xmlns="c"><rootfile full-path="in/a.opf"/></container>')
        items = '<manifest><item id="1" href="b%20c.xhtml"/><item id="0" href="a.xhtml"/></manifest>'
        spine = '<spine><itemref idref="0"/><itemref idref="1"/></spine>'
        book.writestr(
            "in/a.opf", f'<package xmlns="p"><metadata><title>A &amp; B</title></metadata>{items}{spine}</package>'
        )
        book.writestr("in/a.xhtml", first)
        book.writestr("in/b c.xhtml", "<p>Second.</p>")


def test_a_small_book_with_a_text_that_is_too_long_is_left_out(tmp_path):
    epub(tmp_path / "bomb.epub", "a " * 16_000_001)
    assert (tmp_path / "bomb.epub").stat().st_size < 100_000
    write_files(tmp_path, {"b.md": "b"})
    assert documents(tmp_path)[1].endswith("as EPUB: convert them to text (such as 'bomb.epub')")


@pytest.mark.parametrize(
    ("write", "package", "title", "text"),
    [
        (docx, "mammoth", "Zoo", "## Zebras\nStriped.\n\nlegs    4"),
        (pptx, "pptx", "a", "## Zebras\nStriped.\n\nSmile."),
        (xlsx, "openpyxl", "a", "## Zoo\nname | legs\nzebra | 4"),
        (epub, "zipfile", "A & B", "## One\nFirst.\n\nSecond."),
    ],
)
def test_office_files_and_books(tmp_path, write, package, title, text):
    pytest.importorskip(package)
    name = f"a.{write.__name__}"
    write(tmp_path / name)
    (tmp_path / "broken.docx").write_bytes(b"no zip")
    found, line = documents(tmp_path)
    assert [(d.id, d.metadata["title"], d.text) for d in found] == [(name, title, f"{title} {text}")]
    assert "broken.docx" in line


def pdf(text):
    """Returns a PDF of one page."""
    stream = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET".encode()
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Contents 4 0 R/Resources<</Font<</F1 5 0 R>>>>>>",
        b"<</Length %d>>stream\n%s\nendstream" % (len(stream), stream),
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    ]
    out, places = io.BytesIO(b"%PDF-1.4\n"), []
    out.seek(0, 2)
    for n, content in enumerate(objects, 1):
        places.append(out.tell())
        out.write(b"%d 0 obj%s endobj\n" % (n, content))
    start = out.tell()
    rows = b"".join(b"%010d 00000 n \n" % place for place in places)
    end = b"trailer<</Size 6/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF" % start
    out.write(b"xref\n0 6\n0000000000 65535 f \n" + rows + end)
    return out.getvalue()


def test_folders_of_data_are_no_folders_of_documents(tmp_path):
    names = ("README.md", "LICENSE.txt", "CHANGES.md")
    folder = write_files(tmp_path / "data", {"pairs.csv": "question,answer\nq,a\n", **dict.fromkeys(names, "")})
    assert not names_in(str(folder))
    assert read(folder).questions == ("q",)
    write_files(tmp_path / "docs", {"table.csv": "a,b\n", **{f"{n}.md": "x" for n in range(4)}})
    assert len(documents(tmp_path / "docs")[0]) == 4
    check_refusal(lambda: read_corpus(tmp_path / "docs", pool="answers"), "only reading-comprehension data")


@pytest.mark.parametrize(
    ("path", "corpus"),
    [("docs", "docs"), ("docs/*.md", "docs"), ("docs/a.md", "docs/a.md"), ("docs/c.txt", "docs/c.txt")],
)
def test_documents_given_for_pairs_are_refused_with_what_to_do(tmp_path, path, corpus):
    write_files(tmp_path / "docs", {"a.md": "a", "b.md": "b", "c.txt": "c"})
    serving = f"`endx serve --model=all-MiniLM-L6-v2 --corpus={tmp_path}/{corpus}`"
    remedies = f"search them with {serving}", "`endx generate`", "give questions with answers"
    check_refusal(lambda: read(tmp_path / path), f"{tmp_path}/{path} holds documents", *remedies)
