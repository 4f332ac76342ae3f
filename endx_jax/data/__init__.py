"""Reading, splitting, tokenization and batching of data."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from endx_jax.data.formats import read
    from endx_jax.data.sets.records import RetrievalSet

__all__ = ["RetrievalSet", "read"]
_MODULES = {"RetrievalSet": "endx_jax.data.sets.records", "read": "endx_jax.data.formats"}


def __getattr__(name: str):
    # Readers are imported at first use, since encoding texts only needs the tokenization.
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'endx_jax.data' has no attribute {name!r}")


__dir__ = __all__.copy  # for tab completion
