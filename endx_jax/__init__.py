"""endx_jax: answer retrieval with dual encoders in JAX.

`endx_jax.load` returns an embedding model, `endx_jax.train` trains one, and `endx_jax.evaluate` evaluates one.
`endx_jax.open_index` searches encoded documents.
`endx_jax.losses` and `endx_jax.metrics` are pure functions of arrays.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from endx_jax.experiment.check import check
    from endx_jax.experiment.evaluate import evaluate
    from endx_jax.experiment.from_python import train
    from endx_jax.experiment.mining import mine
    from endx_jax.index.index_model import open_index
    from endx_jax.inference import load

__version__ = "0.2.0"

_SUBPACKAGES = (
    "data",
    "index",
    "inference",
    "losses",
    "methods",
    "metrics",
    "models",
    "mteb",
    "pretrained",
    "ranking",
    "training",
)
_FUNCTIONS = {
    "check": "endx_jax.experiment.check",
    "evaluate": "endx_jax.experiment.evaluate",
    "load": "endx_jax.inference",
    "mine": "endx_jax.experiment.mining",
    "open_index": "endx_jax.index.index_model",
    "train": "endx_jax.experiment.from_python",
}
__all__ = ["__version__", "check", "evaluate", "load", "mine", "open_index", "train", *_SUBPACKAGES]


def __getattr__(name: str):
    # Functions and subpackages are imported at first use, so that `import endx_jax` is fast.
    if name in _FUNCTIONS:
        return getattr(importlib.import_module(_FUNCTIONS[name]), name)
    if name in _SUBPACKAGES:
        return importlib.import_module(f"endx_jax.{name}")
    raise AttributeError(f"module 'endx_jax' has no attribute {name!r}")


__dir__ = __all__.copy  # for tab completion
