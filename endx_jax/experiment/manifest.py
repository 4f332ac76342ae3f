"""Manifest of a run: versions, hardware and the commit of the code."""

import functools
import importlib.metadata
import os
import pathlib
import platform
import subprocess
import time

import jax

# Packages whose versions can affect results.
PACKAGES = ("endx_jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy", "tokenizers")


@functools.cache
def environment() -> dict:
    """Returns versions of Python and packages, commit of the code (empty if not a checkout), and hardware."""
    devices = jax.devices()
    return {
        "commit": _commit(pathlib.Path(__file__).parent),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
        "system": platform.platform(),
        "processor": processor(),
        "cores": cores(),
        "devices": {"kind": devices[0].device_kind, "count": len(devices), "processes": jax.process_count()},
    }


def manifest(seed: int, data: dict) -> dict:
    """Returns the contents of `manifest.json`: environment, start time, seed and hash of the data."""
    begun = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {"begun": begun, "seed": seed, "data_sha256": data["sha256"], **environment()}


def _version(package: str) -> str:
    """Returns the installed version; empty if the package is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _commit(folder: pathlib.Path) -> str:
    """Returns the checked-out commit of a folder, followed by `+` if files are modified; empty if not a checkout."""
    try:
        run = functools.partial(subprocess.run, cwd=folder, capture_output=True, text=True, check=True, timeout=10)
        modified = run(["git", "status", "--porcelain", "--untracked-files=no"]).stdout.strip()
        return run(["git", "rev-parse", "HEAD"]).stdout.strip() + ("+" if modified else "")
    except (OSError, subprocess.SubprocessError):
        return ""


def processor() -> str:
    """Returns the model name of this machine's processor."""
    information = pathlib.Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def cores() -> int:
    """Returns the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
