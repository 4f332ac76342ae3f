"""Packages by which exports are verified: those that their users load them with."""

import importlib.util

from endx_jax.errors import EndxError

# Module and pip requirement of each format's runtime.
RUNTIMES = {
    "sentence-transformers": ("sentence_transformers", "'sentence-transformers>=6.2'"),
    "stablehlo": ("flatbuffers", "flatbuffers"),
}


def check_runtime(kind: str) -> None:
    """Raises EndxError if the runtime of a format is not installed."""
    module, requirement = RUNTIMES[kind]
    if importlib.util.find_spec(module) is None:
        raise EndxError(f"--verify needs the runtime of --format={kind}: pip install {requirement}")
