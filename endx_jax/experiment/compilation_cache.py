"""Cache of compiled programs on disk.

JAX's setting applies to the whole process, so only the verbs of `endx` change it; `endx_jax.load` does not.
"""

import jax

from endx_jax.buckets import url_of
from endx_jax.files import expanded
from endx_jax.training.loop import TrainSettings


def use_compilation_cache(folder: str, least_seconds: float = 1.0) -> None:
    """Caches programs that took at least `least_seconds` to compile in `folder`; no effect if `folder` is empty."""
    if folder:
        jax.config.update("jax_compilation_cache_dir", url_of(folder) or str(expanded(folder)))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", least_seconds)


def keep_programs() -> None:
    """Caches all programs in training's default folder, for verbs that encode with many small programs.

    No effect if a cache is configured already, such as by `JAX_COMPILATION_CACHE_DIR`.
    """
    if not jax.config.values["jax_compilation_cache_dir"]:
        use_compilation_cache(TrainSettings.compilation_cache, least_seconds=0.0)
