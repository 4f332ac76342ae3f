"""A real retrieval set that every installation has: the docstrings of Python and of the libraries this one needs."""

import ast
import collections
import contextlib
import gc
import importlib.util
import os
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator

from endx_jax.data.cache_folder import CacheFolder
from endx_jax.data.docstring_cache import kept, sources_key
from endx_jax.data.docstring_text import question_and_answer
from endx_jax.data.records import RetrievalSet
from endx_jax.data.splits import take

PACKAGES = (
    "absl",
    "chex",
    "etils",
    "flax",
    "grain",
    "huggingface_hub",
    "jax",
    "ml_collections",
    "numpy",
    "optax",
    "orbax",
    "scipy",
    "tensorflow_datasets",
    "transformers",
)
# Tests, copies of other projects, programs, the place of installed packages, and transformers' models: 2,000 files of
# generated text that is nearly the same from model to model.
SKIPPED = {
    "test",
    "tests",
    "testing",
    "vendor",
    "vendored",
    "external",
    "third_party",
    "_lib",
    "ensurepip",
    "idlelib",
    "lib2to3",
    "turtledemo",
    "site-packages",
    "dist-packages",
    "models",
}
ARTICLES = {"a", "an", "the"}


def docstring_pairs(limit: int = 8000, *, cache: str = "") -> RetrievalSet:
    """Pairs each symbol's summary sentence, the question, with its name and the rest of its docstring, the answer.

    Sources are parsed and never imported. Only public functions, classes and methods count; a name leaves out private
    modules on its way (`numpy.linalg.svd`, not `numpy.linalg._linalg.svd`), and is the id of question and answer.

    A summary that stands over several different texts is dropped altogether, and so is a text under several summaries:
    "Return a string representation." has many right answers of which the judgements would know one, so that a system
    would be punished for finding the others. Summaries that differ only in articles, case, punctuation and a
    final s count as equal.

    The set depends on the installed versions. Which pairs are taken depends on each question's hash alone, so that a
    new version of one package changes little.

    Args:
      limit: take at most so many pairs, those of smallest sha256 of the question.
      cache: folder to keep what is found in, as parsing every source takes ten seconds; empty: none.

    Raises:
      EndxError: `limit` is below 1.
    """
    sources = list(_sources())
    with _collector_paused():
        if cache:
            found = kept(CacheFolder(cache), sources_key(sources, __file__), lambda: _found(sources))
        else:
            found = list(_found(sources))
        records = _records(found)
    return take(records, limit)


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """Syntax trees hold no cycles; looking for some in all of a running JAX program nearly doubles the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _sources() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yields (path, public name in parts) of every module of the standard library and the packages."""
    roots: list[tuple[str, tuple[str, ...]]] = [(sysconfig.get_path("stdlib"), ())]
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        locations = spec.submodule_search_locations if spec else None
        roots += [(location, (package,)) for location in locations or ()]
    for folder, prefix in roots:
        yield from _modules(folder, prefix)


def _found(sources: Iterable[tuple[str, tuple[str, ...]]]) -> Iterator[tuple[str, str, str]]:
    """Yields (name, question, answer) of every docstring that makes a good pair."""
    for path, module in sources:
        for name, docstring in _docstrings(path, module):
            if pair := question_and_answer(docstring):
                yield (name, *pair)


def _records(found: Iterable[tuple[str, str, str]]) -> RetrievalSet:
    # The order of files must not matter: of equal pairs, and of equal names, the first in this order is kept.
    distinct: dict[tuple, tuple[str, str, str]] = {}
    for name, question, answer in sorted(found, key=lambda item: (item[1:], len(item[0]), item[0])):
        distinct.setdefault((_gist(question), answer.casefold()), (name, question, answer))
    questions = collections.Counter(question for question, _ in distinct)
    answers = collections.Counter(answer for _, answer in distinct)
    named: dict[str, tuple[str, str]] = {}
    for (gist, folded), (name, question, answer) in distinct.items():
        if questions[gist] == answers[folded] == 1:
            named.setdefault(name, (question, f"{name}: {answer}"))
    return RetrievalSet(
        questions=tuple(question for question, _ in named.values()),
        candidates=tuple(answer for _, answer in named.values()),
        qrels=tuple((row,) for row in range(len(named))),
        question_ids=tuple(named),
        candidate_ids=tuple(named),
    )


def _gist(question: str) -> tuple[str, ...]:
    words = re.findall(r"\w+", question.casefold())
    return tuple(word.rstrip("s") for word in words if word not in ARTICLES)


def _modules(folder: str, prefix: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yields (path, public name in parts) of every module below a folder that is not to be skipped."""
    for here, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not _is_skipped(name)]
        for file in files:
            stem, extension = os.path.splitext(file)
            if extension == ".py" and not _is_skipped(stem):
                inner = os.path.relpath(here, folder).split(os.sep)
                parts = (*prefix, *(part for part in inner if part != "."), stem)
                yield os.path.join(here, file), (*parts[:1], *(part for part in parts[1:] if part[0] != "_"))


def _is_skipped(name: str) -> bool:
    return name in SKIPPED or not SKIPPED.isdisjoint(name.strip("_").split("_"))


def _docstrings(path: str, module: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yields (name, docstring) of the public functions, classes and methods of a file; none if it does not parse."""
    try:
        with open(path, "rb") as file:
            source = file.read()
        if b'"""' not in source:
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Other people's escape sequences.
            tree = ast.parse(source)
    except (OSError, SyntaxError, ValueError):
        return
    inside: list[tuple[ast.AST, tuple[str, ...]]] = [(tree, module)]
    while inside:
        node, prefix = inside.pop()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If | ast.Try):
                inside.append((child, prefix))
            elif isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and child.name[0] != "_":
                if docstring := ast.get_docstring(child):
                    yield ".".join((*prefix, child.name)), docstring
                if isinstance(child, ast.ClassDef):
                    inside.append((child, (*prefix, child.name)))
