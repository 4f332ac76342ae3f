"""Hooks of the documentation site: reference pages of settings and commands from the code, equations as MathML."""

import contextlib
import html as markup
import importlib.util
import io
import itertools
import json
import logging
import pathlib
import re

from latex2mathml.converter import convert
from mkdocs.structure.files import File

from endx_jax import losses, methods, metrics
from endx_jax.cli.entry import VERBS, run_verb
from endx_jax.experiment.config import resolve
from endx_jax.methods.config import base_config
from endx_jax.settings import flattened

SETTINGS = """# Settings

Every setting, its default and its meaning. Recipes set them in `get_config`; command lines override them as
`--config.SECTION.KEY=VALUE`. Settings marked *cost* affect time, memory, logs, reports or paths, but not the trained
model; a resumed run may change only these.
"""
COMMANDS = """# Command line

`endx VERB` is `python -m endx_jax VERB`. Exit status: 0, 2 after a user error (one line on standard error), 75 if the
same command resumes the work, 130 after an interrupt.
"""
# Links to files outside of the documentation, which lead to the repository, or are replaced by their text.
OUTSIDE = re.compile(
    r"\[([^\]]+)\]\((?:\.\./)+"
    r"((?:endx_jax|benchmarks|launch|examples|configs|tests|reproduction|README|LICENSE)[^)]*)\)"
)
# Cells of tables that begin with a number, or have one word of code, and are short enough for one line.
NUMBER = re.compile(r"<td>((?=[-+.]?\d)[^<]{1,24}|<code>[^<]{1,16}</code>)</td>")
# Long words of code in cells, and the places where they may be broken.
CODE, BREAKS = re.compile(r"<code>[^<]{17,}</code>"), re.compile(r"(?<=[._=,(])(?=[A-Za-z])")
# Names of flags, which are not broken after their hyphens.
FLAG = re.compile(r"(?<=[\s>;(])--[a-z][\w.-]*")
# Files of the repository that are pages of the site too.
REPOSITORY = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
# Links to them.
PAGE = re.compile(rf"\]\(\.\./({'|'.join(REPOSITORY)})")
# Settings whose table a page shows: names in a comment.
SHOWN = re.compile(r"^<!-- settings: (.+) -->$", re.MULTILINE)
# Equations in the form of arithmatex: \(...\) inline and \[...\] displayed.
EQUATION = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.+?)\\[)\]]</\1>', re.DOTALL)
# Weight of the pages of a section in the site's search.
BOOSTS = {"Guides": 2, "Extending": 0.5, "Reference": 0.3, "Results": 0.7}
# Packages whose public names are all described in reference/python.md.
DESCRIBED = (losses, metrics, methods)
# Words that the site's search has to find, among them settings, functions, commands and words beside punctuation.
SEARCHED = "softmax learning_rate evaluate_every global_batch_size warmup_steps tower_chunk ndcg_at load workdir bm25"


def on_files(files, config):
    """Adds the generated pages, those of the repository, and a font for equations."""
    for name, text in (("settings", settings_page()), ("command-line", commands_page())):
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    for name in REPOSITORY:
        text = pathlib.Path(config.docs_dir, "..", name).read_text()
        text = text.replace("](docs/", "](").replace("](LICENSE", "](../LICENSE")
        files.append(File.generated(config, name, content=text))
    (package,) = importlib.util.find_spec("ziamath").submodule_search_locations
    files.append(File.generated(config, "reference/math.ttf", abs_src_path=f"{package}/fonts/STIXTwoMath-Regular.ttf"))
    return files


def on_page_markdown(markdown, page, config, files):
    """Shows tables of settings, resolves links to other files, and lets the search show guides before the reference."""
    sections = [section.title for section in page.ancestors]
    page.meta["search"] = {"boost": next((BOOSTS[title] for title in sections if title in BOOSTS), 1)}
    declared = {row[0]: row for row in flattened(resolve(base_config()))} if SHOWN.search(markdown) else {}
    markdown = PAGE.sub(r"](\1", markdown)
    markdown = SHOWN.sub(lambda found: _table(declared[name] for name in found[1].split()), markdown)
    address = config["repo_url"]
    return OUTSIDE.sub(rf"[\1]({address}/blob/main/\2)" if address else r"\1", markdown)


def on_page_content(html, page, config, files):
    """Converts equations to MathML, keeps numbers and flags in one line, and breaks code in cells after punctuation.

    Warns about public names without a docstring, which fails a strict build.
    """
    html = EQUATION.sub(lambda found: _mathml(found[2], found[1] == "div"), html)
    html = NUMBER.sub(r'<td class="number">\1</td>', html)
    html = re.sub(r"<td>.+?</td>", lambda cell: CODE.sub(lambda code: BREAKS.sub("<wbr>", code[0]), cell[0]), html)
    html = FLAG.sub(r'<span class="flag">\g<0></span>', html)
    if page.file.src_uri == "reference/python.md":
        for name in (f"{package.__name__}.{name}" for package in DESCRIBED for name in package.__all__):
            if f'id="{name}"' not in html:
                logging.getLogger("mkdocs").warning("%s is public and has no docstring", name)
    return html


def on_post_build(config):
    """Warns about words that the site's search does not find, which fails a strict build."""
    index = json.loads(pathlib.Path(config.site_dir, "search", "search_index.json").read_text())
    text = re.sub("<[^>]+>", " ", " ".join(f"{page['title']} {page['text']}" for page in index["docs"]))
    words = set(re.split(index["config"]["separator"], markup.unescape(text).lower()))
    for word in SEARCHED.split():
        if word not in words:
            logging.getLogger("mkdocs").warning("the search does not find %s", word)


def _mathml(tex: str, display: bool) -> str:
    math = convert(markup.unescape(tex), display="block" if display else "inline")
    return f'<div class="equation">{math}</div>' if display else math


def settings_page() -> str:
    """Returns the page of all settings: the sections of a config, then the objective of each method."""
    settings = resolve(base_config())
    parts = [SETTINGS]
    for section, rows in itertools.groupby(flattened(settings), key=lambda row: row[0].partition(".")[0]):
        parts += [f"## {section}\n", _table(rows)] if section != "objective" else []
    for name in methods.METHODS:
        objective = methods.find_method(name).settings()
        parts += [f"## objective, {name}\n", _table(flattened(objective, "objective."))]
    return "\n".join(parts)


def _table(settings) -> str:
    """Returns the table of settings that `flattened` yields."""
    cells = [
        " | ".join((f"`{name}`", f"`{value!r}`", _escape(told["doc"]), "" if told["changes_results"] else "cost"))
        for name, value, told in settings
    ]
    return "\n".join(["| setting | default | meaning | |", "|---|---|---|---|", *(f"| {row} |" for row in cells), ""])


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def commands_page() -> str:
    """Returns the page of all verbs with the output of `endx VERB --help`."""
    parts = [COMMANDS]
    for verb in VERBS:
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
            run_verb([verb, "--help"])
        # `endx train --help` lists the settings, which have a page of their own.
        text = shown.getvalue().partition("\n  --config.seed")[0].strip()
        parts.append(f"## endx {verb}\n\n```\n{text}\n```\n")
    return "\n".join(parts)
