"""Pages: tables are those of docs/tables; flags, settings, functions, tests, files and messages named there exist."""

import ast
import functools
import importlib.util
import json
import pathlib
import pkgutil
import re

import pytest

from endx_jax.cli.entry import VERBS
from endx_jax.experiment.config import resolve
from endx_jax.methods import METHODS, find_method
from endx_jax.methods.config import base_config, recipe_files
from endx_jax.settings import flattened

ROOT = pathlib.Path(__file__).parents[1]
OTHER_PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/README.md", "launch/README.md")
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), *(ROOT / name for name in OTHER_PAGES)]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
PYTHON = [str(file) for file in ROOT.rglob("*.py")]
TESTS = {n for file in (ROOT / "tests").rglob("*.py") for n in re.findall(r"def (test_\w+)", file.read_text())}
SOURCE = "\n".join(file.read_text() for file in sorted((ROOT / "endx_jax").rglob("*.py")))
# First columns of tables of numbers that are no results: counts of publishers, sizes that follow from the width, and
# status codes.
NO_RESULTS = {("docs/data.md", "file"), ("docs/large-corpora.md", "per million documents"), ("docs/serving.md", "path")}
SECTIONS = "data model objective optimizer train mesh evaluation".split()


def module(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


page_tables = module(ROOT / "docs/page_tables.py")
FILES = sorted((ROOT / "docs/tables").glob("*.json"))
TABLES = {page: list(page_tables.tables(page.read_text())) for page in PAGES}


@functools.cache
def settings():
    names = [name for name, *_ in flattened(resolve(base_config()))]
    return {*names, *(n for method in METHODS for n, *_ in flattened(find_method(method).settings(), "objective."))}


def by_name(page):
    return str(page.relative_to(ROOT))


def text_of(page):
    """Returns a page, or the cells of a notebook without their outputs."""
    if page.suffix != ".ipynb":
        return page.read_text()
    return "\n".join("".join(cell["source"]) for cell in json.loads(page.read_text())["cells"])


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_tables_are_those_of_their_files(page):
    found = []
    for name, line, table in TABLES[page]:
        if name:
            assert f"tables/{name}.json)" in page.read_text(), "no link to the file of the table"
            found += [f"line {line}: {each}" for each in page_tables.differences(table, page_tables.stored(name))]
    assert not found


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_tables_of_results_have_files(page):
    for name, line, (columns, rows) in TABLES[page]:
        cells = [cell for row in rows for cell in row[1:] if cell]
        numbers = [cell for cell in cells if re.match(r"[-+.]?\d", cell)]
        known = name or (by_name(page), columns[0]) in NO_RESULTS
        assert known or len(numbers) < len(cells) / 2, f"{by_name(page)}:{line}"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_files_say_where_their_numbers_are_from(file):
    about = json.loads(file.read_text())
    assert [key for key in about if key != "notes"] == list(page_tables.KEYS)
    assert all(about[key] for key in ("title", "origin", "versions", "machine"))
    assert about["command"] or "command" in about["origin"], "neither a command nor words about it in `origin`"
    assert all(len(row) == len(about["columns"]) for row in about["rows"])
    page = ROOT / "docs" / about["page"].partition("#")[0]
    assert file.stem in {name for name, *_ in TABLES[page]}, f"{page.name} does not show it"


def test_a_number_that_differs_is_found():
    full = {"columns": ["system", "MRR", "R@1"], "rows": [["bm25", "76.05", "66.57"]]}
    (table,) = page_tables.tables("<!-- table: x -->\n\n| system | MRR |\n|---|---|\n| [bm25](a.md) | **76.06** |\n")
    assert page_tables.differences(table[2], full) == ["no row ['bm25', '76.06']"]
    full["rows"][0][1] = "76.06"
    assert not page_tables.differences(table[2], full)


# Flags of other programs, which pages name with their commands.
OTHERS = re.compile(
    r"(--)?(help|cov|editable|no-deps|wheel-dir|build-arg|file|tag|strict|logdir|preload|nodes|signal|cluster|location|"
    r"node-locations|machine-type|tpu-topology|num-nodes|spot|accelerator|role|member|server-side|prefix|"
    r"max-log-requests|grad_cache|gc_q_chunk_size|xla_[a-z_]+|gpu-driver-version|knowledge_distillation)"
)


def unknown_settings(text: str) -> set[str]:
    known = settings()
    named = set(re.findall(r"--config\.([a-z_]+(?:\.[a-z_]+)+|seed)\b", text))
    named |= set(re.findall(rf"`((?:{'|'.join(SECTIONS)})\.[a-z0-9_.]+)(?:=[^`]*)?`", text))
    named = {name.rstrip(".") for name in named if not name.endswith((".json", ".safetensors"))}
    return named - known - {name.rpartition(".")[0] for name in known} - {"seed"}


@functools.cache
def sources() -> str:
    files = [file for folder in ("benchmarks", "reproduction", "launch") for file in (ROOT / folder).rglob("*.*")]
    return SOURCE + "\n".join(file.read_text() for file in files if file.suffix in (".py", ".sh", ".yaml", ".md"))


@functools.cache
def spelled(flag: str) -> bool:
    """Whether a flag is spelled in a parser, or made from a field's name."""
    return bool(re.search(rf"--{flag}\b|\"{flag}\"|\b{flag.replace('-', '_')}: ", sources()))


def unknown_flags(text: str) -> set[str]:
    text = re.sub(r"^(?:    )?(?:gcloud|kubectl|docker|hf|pip|sbatch) .*$", "", text, flags=re.MULTILINE)
    flags = {flag for flag in re.findall(r"(?<![\w-])--([a-z][a-z0-9_-]+)", text) if not OTHERS.fullmatch(flag)}
    return {flag for flag in flags if not flag.startswith("config") and not spelled(flag)}


# Packages whose functions pages name without `endx_jax.`; the names of the others are those of settings too.
PACKAGES = "checks encoders experiment export losses methods metrics parallel planning ranking registry reproduction"
ENDS = "py|toml|md|sh|yaml|json|jsonl|html|ipynb|svg|png"


def unknown_functions(text: str) -> set[str]:
    """Returns names like `losses.triplet` and `losses/rows.py:mean_over_rows` that do not exist."""
    dotted = set(re.findall(r"(?<![\w./-])endx_jax(?:\.\w+)+", text))
    dotted |= set(re.findall(rf"(?<![\w./-])(?:{PACKAGES.replace(' ', '|')})(?:\.[A-Za-z_]\w*)+", text))
    names = {name: re.sub(r"^registry\b", "data.formats.registry", name) for name in dotted}
    names = {name: full for name, full in names.items() if not re.search(rf"\.({ENDS})$", name)}
    names |= {
        f"{path}.py:{name}": f"{path.replace('/', '.')}:{name}"
        for path, name in re.findall(r"`([\w/]+)\.py:([\w.]+)`", text)
    }
    return {name for name, full in names.items() if not resolves(full)} - {"losses.Contrastive"}  # of PyLate


def resolves(name: str) -> bool:
    try:
        pkgutil.resolve_name(name if name.startswith(("endx_jax", "reproduction")) else f"endx_jax.{name}")
    except (ImportError, AttributeError):
        return False
    return True


def test_functions_that_do_not_exist_are_found():
    text = (
        "`losses.tripplet`, `endx_jax.lode`, `losses/rows.py:mean`, `losses.triplet`, `losses/rows.py:mean_over_rows`"
    )
    assert unknown_functions(text) == {"losses.tripplet", "endx_jax.lode", "losses/rows.py:mean"}


@pytest.mark.parametrize("page", [*PAGES, *NOTEBOOKS], ids=by_name)
def test_what_pages_name_exists(page):
    text = text_of(page)
    assert not unknown_settings(text)
    assert not unknown_flags(text)
    assert not unknown_functions(text)
    assert not set(re.findall(r"(?:^|`|    )endx ([a-z]+)\b", text, re.MULTILINE)) - {*VERBS}
    assert not set(re.findall(r"--config=([a-z0-9_]+)(?=[\s:,`]|$)", text, re.MULTILINE)) - {*recipe_files()}
    assert not set(re.findall(r"`(test_\w+)`", text)) - TESTS
    named = re.findall(
        rf"(?<![\w/.-])((?:benchmarks|configs|docs|endx_jax|examples|launch|reproduction|tests)/[\w./-]+\.(?:{ENDS}))",
        text,
    )
    assert not {path for path in named if not (ROOT / path).exists()}
    # Python files by the end of their path, without those of other projects and of exports.
    named = set(re.findall(r"`([\w/]+\.py)[`:]", text)) - {"colbert.py", "encode.py", "hn_mine.py"}
    assert not {path for path in named if not any(file.endswith(f"/{path}") for file in PYTHON)}
    assert "pip install 'endx_jax" not in text, "nothing is published: pip install -e"


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=by_name)
def test_no_line_of_a_paragraph_is_a_heading(page):
    text = re.sub(r"^ *(```|~~~).*?^ *\1", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert not re.findall(r"^ *#+[^#\s].*", text, re.MULTILINE), "a heading for the site, without a space"


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_links_into_pages_lead_to_headings(page):
    for path, anchor in re.findall(r"\]\(([\w/.-]+\.md)#([\w-]+)\)", (ROOT / page).read_text()):
        heads = re.findall(r"^#+ (.+)$", (ROOT / path).read_text(), re.MULTILINE)
        assert anchor in {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", head).strip().lower()) for head in heads}


def test_messages_of_the_page_about_messages_are_printed():
    headings = re.findall(r"^### `(.+?)`", (ROOT / "docs/faq.md").read_text(), re.MULTILINE)
    joined = re.sub(r'"\s*\n\s*f?"', "", SOURCE)  # literals over several lines
    reported = {"trained"}  # systems in tables
    assert len(headings) > 10
    assert not [text for text in headings if text not in joined and text not in reported]


def test_settings_that_messages_name_exist():
    nodes = [*ast.walk(ast.parse(SOURCE))]
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    strings = (node.value for node in nodes if isinstance(node, ast.Constant) and id(node) not in docstrings)
    pattern = rf"(?<![\w./-])(?:{'|'.join(SECTIONS)})(?:\.[a-z0-9_]+)+(?![\w(])"
    named = {name for text in strings if isinstance(text, str) for name in re.findall(pattern, text)}
    tensors = {"model.embed_tokens.weight"}
    assert len(named) > 50
    assert not unknown_settings(" ".join(f"`{name}`" for name in named - tensors))


def test_the_guide_to_settings_of_training_has_all_of_them():
    page = (ROOT / "docs/settings-guide.md").read_text()
    shown = [name for line in re.findall(r"^<!-- settings: (.+) -->$", page, re.MULTILINE) for name in line.split()]
    declared = [name for name, *_ in flattened(resolve(base_config()))]
    assert not set(shown) - set(declared)
    assert not {name for name in declared if name.split(".")[0] in ("optimizer", "train", "mesh")} - set(shown)
    assert len(shown) == len({*shown})
