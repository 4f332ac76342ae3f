"""Processes of tests: threads that take part in agreements as processes do, and real ones."""

import json
import os
import pathlib
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent import futures
from typing import Any

import jax
from fake_buckets import free_port
from helpers import logged_losses

import endx_jax
from endx_jax.errors import Disagreement, EndxError, RunInterrupted
from endx_jax.parallel import agreement, environment


class Store:
    """Key-value store of the coordination service, for threads."""

    def __init__(self):
        self._values, self._changed = {}, threading.Condition()

    def key_value_set(self, key: str, value: str) -> None:
        with self._changed:
            assert key not in self._values, f"{key} is set twice"
            self._values[key] = value
            self._changed.notify_all()

    def blocking_key_value_get(self, key: str, milliseconds: int) -> str:
        with self._changed:
            assert self._changed.wait_for(lambda: key in self._values, timeout=20), f"nobody sets {key}"
            return self._values[key]


def as_processes(monkeypatch, function: Callable[[int], Any], count: int = 2) -> list:
    """Calls a function with the index of each process, at once; returns their values or errors.

    The keys of agreements are counted in each process, so threads need counts of their own.
    """
    this, store = threading.local(), Store()
    with monkeypatch.context() as patch:
        patch.setattr(agreement, "client", lambda: store)
        patch.setattr(agreement, "_key", lambda name: f"{name}/{this.calls.update([name]) or this.calls[name]}")
        patch.setattr(jax.distributed, "is_initialized", lambda: True)
        patch.setattr(jax, "process_index", lambda: this.index)
        patch.setattr(jax, "process_count", lambda: count)

        def act(index: int):
            this.index, this.calls = index, Counter()
            try:
                return function(index)
            except (EndxError, RunInterrupted, Disagreement) as raised:
                return raised

        with futures.ThreadPoolExecutor(count) as threads:
            return [*threads.map(act, range(count))]


def start_program(program: str, *arguments: str, count: int = 2, **variables: str) -> list[subprocess.Popen]:
    """Starts processes of a program's text, which find each other if there are several."""
    shared = os.environ | {"JAX_PLATFORMS": "cpu"} | variables
    if count > 1:
        shared |= {environment.COORDINATOR: f"localhost:{free_port()}", environment.COUNT: str(count)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return [
        subprocess.Popen([sys.executable, "-c", program, *arguments], env=shared | {environment.INDEX: str(n)}, **pipes)
        for n in range(count)
    ]


def start(url, workdir, home, *seed, **variables):
    """Starts a process that shares no folder with others but the compilation cache."""
    home.mkdir(exist_ok=True)
    program = pathlib.Path(__file__).parent / "bucket_process.py"
    own = os.environ | {
        "HOME": str(home),
        "TMPDIR": str(home),
        "XDG_CACHE_HOME": str(home / "cache"),
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": "8",
        "JAX_COMPILATION_CACHE_DIR": jax.config.jax_compilation_cache_dir,
        "PYTHONPATH": str(pathlib.Path(endx_jax.__file__).parents[1]),
        "PYTHONUNBUFFERED": "1",
        **variables,
    }
    command = [sys.executable, str(program), url, workdir, *map(str, seed)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, env=own, cwd=home, **pipes)


def start_all(count, url, workdir, home, seeds=()):
    """Starts processes that have eight devices together and no folder in common but the compilation cache."""
    home.mkdir()
    variables = {"JAX_NUM_CPU_DEVICES": str(8 // count)}
    if count > 1:
        variables |= {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{free_port()}", "JAX_NUM_PROCESSES": str(count)}
    return [
        start(url, workdir, home / str(k), *seeds[k : k + 1], **variables, JAX_PROCESS_ID=str(k)) for k in range(count)
    ]


def finish(processes):
    printed = [process.communicate(timeout=400)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), printed
    return printed


def systems_and_losses(folder):
    return json.loads((folder / "results.json").read_text())["systems"], [*logged_losses(folder).values()]
