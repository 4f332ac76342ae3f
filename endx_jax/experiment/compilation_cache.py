"""Compiled programs kept on disk, so that the same ones are not compiled again in the next process.

The setting is JAX's, and one for the whole process: programs of ours choose it, and `endx_jax.load`, which works in
other people's processes, leaves it alone.
"""

import os

import jax

from endx_jax.training.loop import TrainSettings


def use_compilation_cache(folder: str, least_seconds: float = 1.0) -> None:
    """Keeps what took at least so long to compile in `folder`; empty: changes nothing."""
    if folder:
        jax.config.update("jax_compilation_cache_dir", os.path.expanduser(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", least_seconds)


def keep_programs() -> None:
    """For verbs that encode, whose programs are many and quick: keeps all, where training keeps its own.

    A cache that was configured, such as by `JAX_COMPILATION_CACHE_DIR`, stays as it is.
    """
    if not jax.config.jax_compilation_cache_dir:  # type: ignore[attr-defined]  # options are made at run time
        use_compilation_cache(TrainSettings.compilation_cache, least_seconds=0.0)
