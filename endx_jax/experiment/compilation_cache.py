"""Cache of compiled programs on disk.

JAX has one cache for the whole process. Our command lines set it; `endx_jax.load` does not, since it runs in users'
processes.
"""

import os

import jax

from endx_jax.training.loop import TrainSettings


def use_compilation_cache(folder: str, least_seconds: float = 1.0) -> None:
    """Caches programs that took at least that long to compile in `folder`; empty: changes nothing."""
    if folder:
        jax.config.update("jax_compilation_cache_dir", os.path.expanduser(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", least_seconds)


def keep_programs() -> None:
    """Caches all programs, in the default folder of training; for verbs that encode, whose programs compile quickly.

    An already configured cache, such as by `JAX_COMPILATION_CACHE_DIR`, is not changed.
    """
    if not jax.config.jax_compilation_cache_dir:  # type: ignore[attr-defined]  # options are made at run time
        use_compilation_cache(TrainSettings.compilation_cache, least_seconds=0.0)
