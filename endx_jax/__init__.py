"""endx_jax: answer retrieval with dual encoders in JAX.

`endx_jax.load` returns an embedding model, and `endx_jax.train` trains one. `endx_jax.losses` and `endx_jax.metrics`
are pure functions of arrays.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping
    from typing import Any

    from endx_jax.experiment.data_check import DataCheck
    from endx_jax.inference import EmbeddingModel

__version__ = "0.1.0"

_SUBPACKAGES = (
    "data",
    "inference",
    "losses",
    "methods",
    "metrics",
    "models",
    "mteb",
    "pretrained",
    "retrieval",
    "training",
)
__all__ = ["__version__", "check", "load", "train", *_SUBPACKAGES]


def load(path_or_name: "str | os.PathLike", *, product_dtype: str | None = None) -> "EmbeddingModel":
    """Loads an embedding model: see `endx_jax.inference.load`.

    Examples:
      >>> endx_jax.load("all-MiniLM-L6-v2").encode_query(["How do I send an email?", "Where is my file?"]).shape
      (2, 384)
    """
    from endx_jax.inference import load

    return load(path_or_name, product_dtype=product_dtype)


def check(pairs: "Any", test: "Any" = None, *, model: "str | os.PathLike" = "all-MiniLM-L6-v2") -> "DataCheck":
    """Checks pairs in memory or in a file before training: see `endx_jax.experiment.data_check`."""
    from endx_jax.experiment.data_check import check

    return check(pairs, test, model=model)


def train(
    pairs: "Iterable[Any]",
    workdir: "str | os.PathLike" = "runs/mine",
    *,
    config: "str | Mapping" = "minilm",
    settings: "Mapping[str, Any] | None" = None,
) -> "EmbeddingModel":
    """Trains a model on (question, answer) pairs in memory and returns it: see `endx_jax.experiment.from_python`."""
    from endx_jax.experiment.from_python import train

    return train(pairs, workdir, config=config, settings=settings)


def __getattr__(name: str):
    # Subpackages are imported at first use, so that `import endx_jax` is fast.
    if name in _SUBPACKAGES:
        return importlib.import_module(f"endx_jax.{name}")
    raise AttributeError(f"module 'endx_jax' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Returns the public names, for tab completion."""
    return list(__all__)
