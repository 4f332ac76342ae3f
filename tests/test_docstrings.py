import contextlib
import doctest
import functools
import importlib
import pathlib
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import mesh_of

import endx_jax
from endx_jax import inference, losses, metrics
from endx_jax.data import read
from endx_jax.experiment import evaluate, from_python, mining
from endx_jax.index import index_model
from endx_jax.inference import EmbeddingModel, load
from endx_jax.methods import Method
from endx_jax.methods.objective import Objective
from endx_jax.models import DualEncoder
from endx_jax.parallel.execution import Execution
from endx_jax.ranking.evaluate import evaluate_scores
from endx_jax.ranking.search import top_k
from endx_jax.settings import key

PACKAGE = pathlib.Path(endx_jax.__file__).parent
# Public names that must have an example.
PUBLIC = [
    *(getattr(losses, name) for name in losses.__all__),
    *(getattr(metrics, name) for name in metrics.__all__ if name != "TIE_RULE"),
    *(EmbeddingModel.encode, EmbeddingModel.encode_query, EmbeddingModel.encode_document),
    *(EmbeddingModel.similarity, EmbeddingModel.similarity_pairwise),
    *(endx_jax.load, load, from_python.train, evaluate.evaluate, mining.mine, read, evaluate_scores, top_k),
    *(index_model.open_index, DualEncoder, Objective, Execution.reduce_rows, Method, key),
]


def compiled(package) -> types.SimpleNamespace:
    """Returns a package whose functions run as one program, since compiling each operation takes longer."""

    def in_one(function):
        def call(*args, **options):
            leaves, tree = jax.tree.flatten((args, options))

            def run(arrays):
                args, options = tree.unflatten([arrays.get(place, leaf) for place, leaf in enumerate(leaves)])
                return function(*args, **options)

            return jax.jit(run)({place: leaf for place, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)})

        return function if isinstance(function, type) else call

    return types.SimpleNamespace(**{name: in_one(getattr(package, name)) for name in package.__all__})


# Names that docs/reference/python.md says the examples assume.
ASSUMED = {"endx_jax": endx_jax, "losses": compiled(losses), "metrics": compiled(metrics)}
ASSUMED |= {"jax": jax, "jnp": jnp, "np": np, "pathlib": pathlib}


def examples() -> dict[str, doctest.DocTest]:
    """Returns the examples of all modules of the package by the name of what they belong to."""
    found = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        if ">>> " in file.read_text(encoding="utf-8"):
            parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
            module = importlib.import_module(".".join(parts).removesuffix(".__init__"))
            tests = doctest.DocTestFinder(exclude_empty=True).find(module, globs=ASSUMED)
            found |= {test.name: test for test in tests if test.examples}
    return found


EXAMPLES = examples()


@functools.cache
def load_once(name: str) -> EmbeddingModel:
    """Loads a model for all examples, on one device."""
    return load(name, mesh=mesh_of(1))


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_have_the_results_that_they_show(name, monkeypatch, tmp_path, request):
    if any(call in EXAMPLES[name].docstring for call in ("endx_jax.load(", "endx_jax.train(", "endx_jax.evaluate(")):
        minilm = request.getfixturevalue("minilm")
        monkeypatch.setattr(endx_jax, "load", load_once)
        monkeypatch.setattr(index_model, "load", lambda name, **_: load_once(name))
        monkeypatch.setattr(inference, "load", lambda name, **_: load_once(name))
        # Training takes minutes: tests/experiment/test_from_python.py trains.
        monkeypatch.setattr(from_python, "run", lambda tree, workdir: None)
        monkeypatch.setattr(from_python, "load", lambda workdir: load_once(minilm))
    report: list[str] = []
    with contextlib.chdir(tmp_path):
        doctest.DocTestRunner(optionflags=doctest.FAIL_FAST).run(EXAMPLES[name], out=report.append)
    assert not report, "".join(report)


def test_public_names_have_an_example():
    names = {f"{public.__module__}.{public.__qualname__}" for public in PUBLIC}
    assert len(names) >= 30
    assert sorted(names - EXAMPLES.keys()) == []
