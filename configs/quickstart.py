"""Quickstart: MiniLM fine-tuned on docstrings as a Siamese dual encoder, in a few minutes on two CPU cores.

The file also makes its data, the docstrings of Python and of installed libraries: see `DATA` at its end.
"""

import ast
import collections
import contextlib
import gc
import hashlib
import importlib.util
import json
import os
import pathlib
import re
import sys
import sysconfig
import warnings
from collections.abc import Callable, Iterable, Iterator

from endx_jax.data.sets.records import RetrievalSet
from endx_jax.data.sets.splits import take
from endx_jax.files import cache_folder, state_of, write_cache
from endx_jax.methods.config import base_config


def get_config():
    """Returns the config: 36 steps with global batches of 64 docstring pairs; up to 3,000 test questions."""
    config = base_config()

    config.data.path = "docstrings"
    config.data.question_length = 32
    config.data.answer_length = 64
    config.data.validation_fraction = 0.04
    config.data.test_fraction = 0.4
    config.data.max_test_questions = 3000

    config.model.pretrained = "all-MiniLM-L6-v2"
    config.model.dropout = 0.0
    config.model.attention_dropout = 0.0

    config.objective.temperature = 0.05

    config.optimizer.learning_rate = 1e-4
    config.optimizer.warmup_steps = 4

    config.train.global_batch_size = 64
    config.train.epochs = 0.0
    config.train.steps = 36
    config.train.log_every = 4
    config.train.checkpoint_every = 18
    return config


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
# Folders and modules to skip: tests, vendored projects, programs, installed packages, and transformers' models, whose
# 2,000 files have nearly the same generated text.
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
    """Returns pairs of a symbol's summary sentence, the question, and its name with the rest of its docstring.

    Sources are parsed and not imported. Only public functions, classes and methods count. A name omits private modules
    (`numpy.linalg.svd`, not `numpy.linalg._linalg.svd`), and is the id of question and answer.

    Summaries with several different texts are dropped, and so are texts with several summaries: "Return a string
    representation." has many right answers, of which the judgements would contain one. Summaries that differ only in
    articles, case, punctuation and a final s count as equal.

    The set depends on the installed versions. Pairs are selected by the hash of their question, so that a new version
    of one package changes few of them.

    Args:
      limit: maximum number of pairs; those with the smallest sha256 of the question are selected.
      cache: folder of the cache, since parsing all sources takes ten seconds; empty for no cache.

    Raises:
      EndxError: `limit` is below 1.
    """
    sources = list(_sources())
    with _collector_paused():
        if cache:
            found = cached(cache_folder(cache), sources_key(sources, __file__), lambda: _found(sources))
        else:
            found = list(_found(sources))
        records = _records(found)
    return take(records, limit)


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """Pauses garbage collection, which would nearly double the time although syntax trees contain no cycles."""
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
    """Yields (name, question, answer) of every docstring that is a good pair."""
    for path, module in sources:
        for name, docstring in _docstrings(path, module):
            if pair := question_and_answer(docstring):
                yield (name, *pair)


def _records(found: Iterable[tuple[str, str, str]]) -> RetrievalSet:
    # Sorted, so that the order of files does not matter: the first of equal pairs, and of equal names, is kept.
    distinct: dict[tuple, tuple[str, str, str]] = {}
    for name, question, answer in sorted(found, key=lambda item: (item[1:], len(item[0]), item[0])):
        words = re.findall(r"\w+", question.casefold())
        gist = tuple(word.rstrip("s") for word in words if word not in ARTICLES)
        distinct.setdefault((gist, answer.casefold()), (name, question, answer))
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


def _modules(folder: str, prefix: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yields (path, public name in parts) of every module in a folder that is not skipped."""
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
            warnings.simplefilter("ignore")  # invalid escape sequences
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


# (name, question, answer)
Found = tuple[str, str, str]


def sources_key(sources: Iterable[tuple[str, tuple[str, ...]]], *code: str) -> str:
    """Returns the sha256, in hexadecimal, of the names and states of sources and of the code that reads them.

    Args:
      sources: (path, public name in parts) of each source file.
      *code: paths of the modules that read them.
    """
    digest = hashlib.sha256(sys.version.encode())
    for file in code:
        digest.update(hashlib.sha256(pathlib.Path(file).read_bytes()).digest())
    for path, name in sources:
        digest.update(repr((path, name, _status(path))).encode())
    return digest.hexdigest()


def _status(path: str) -> tuple[int, ...]:
    try:
        return state_of(pathlib.Path(path))
    except OSError:  # a broken link, which is not read either
        return ()


def cached(folder: pathlib.Path, key: str, find: Callable[[], Iterable[Found]]) -> list[Found]:
    """Returns the results of `find`, from the cache if it has them undamaged; otherwise writes them there."""
    file = folder / f"docstrings-{key}.json"
    try:
        checksum, _, body = file.read_bytes().partition(b"\n")
    except OSError:
        checksum, body = b"", b""
    if checksum and checksum == _checksum(body):
        return [(name, question, answer) for name, question, answer in json.loads(body)]
    found = list(find())
    body = json.dumps(found).encode()
    write_cache(file, lambda stream: stream.write(_checksum(body) + b"\n" + body))
    return found


def _checksum(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest().encode()


# Patterns of markup; a match is replaced by its group.
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
    """Returns the summary sentence and the rest of a docstring as plain prose, or None if they are not a good pair.

    The summary must be a sentence of 4 to 40 words, at least three quarters of them alphabetic. The rest must have at
    least 8 words and not repeat the summary. Returns None for templates that a library fills in at import.
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
    """Removes code, directives, sections of examples and references, and markup."""
    text = "\n".join(_prose_lines(docstring.strip().split("\n")))
    for pattern in MARKUP:
        text = pattern.sub(r"\1", text)
    return re.sub(r"\n\s*\n", "\n\n", text)


def _prose_lines(lines: list[str]) -> Iterator[str]:
    fenced = doctest = in_dropped_section = False
    block_indent = None  # lines with a deeper indent belong to a dropped block
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


# Functions that make data sets, by their name in `data.path`.
DATA = {"docstrings": lambda settings: docstring_pairs(cache=settings.cache)}
