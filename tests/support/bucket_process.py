"""Program of tests: one process of a run of the tiny tower, all of whose files are in a bucket or in a folder.

python tests/bucket_process.py URL WORKDIR [SEED]

With a seed, the run validates every two steps, and each process prints the parameters that it compares with those of
the others. If the seed is not 0, this process is slow: at some places it sleeps before it writes, removes or meets the
others.
"""

import functools
import os
import random
import shutil
import sys
import time

import jax
from orbax.checkpoint import multihost
from tiny_bert import tiny_recipe

from endx_jax import uploads
from endx_jax.experiment import workdir as workdirs
from endx_jax.parallel import agreement, distributed
from endx_jax.training import checkpoints

SHARE, SECONDS = 0.3, (0.02, 0.2, 1.0)


def slow(name: str, draw: random.Random, function):
    """Returns the function with sleeps before some calls."""

    @functools.wraps(function)
    def delayed(*arguments, **options):
        if draw.random() < SHARE:
            seconds = draw.choice(SECONDS)
            print(f"slow: {name} {[a for a in arguments if isinstance(a, str)][:1]} {seconds} s", flush=True)
            time.sleep(seconds)
        return function(*arguments, **options)

    return delayed


class SlowClient:
    def __init__(self, client, draw: random.Random):
        self._client, self._draw = client, draw

    def __getattr__(self, name):
        function = getattr(self._client, name)
        return slow(name, self._draw, function) if name in ("key_value_set", "blocking_key_value_get") else function


def slow_down(seed: int) -> None:
    draw = random.Random(seed)
    places = [(os, "replace"), (os, "rename"), (shutil, "rmtree"), (uploads.Mirror, "upload")]
    places += [(checkpoints, name) for name in ("hash_files", "write_bytes", "remove")]
    for place in places:
        setattr(*place, slow(place[1], draw, getattr(*place)))
    client = SlowClient(multihost.get_jax_distributed_client(), draw)
    agreement.client = lambda: client


def compared(params, step: int = 0, check=agreement.check_parameters) -> None:
    """Prints what `check_parameters` compares."""
    print(f"parameters of step {step}: {agreement._digest(params)}", flush=True)
    check(params, step)


if __name__ == "__main__":
    url, workdir, *seed = sys.argv[1:]
    if seed:
        agreement.check_parameters = compared
    from endx_jax.experiment.run import run

    workdirs.LOCK_EVERY, workdirs.LOCK_PATIENCE = 0.2, 2.0
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    # The default is 100 seconds.
    jax.distributed.initialize = functools.partial(jax.distributed.initialize, heartbeat_timeout_seconds=20)
    distributed.initialize()
    config = tiny_recipe("", "", encoder="none")
    if seed:
        config.train.evaluate_every = 2
    if seed and seed[0] != "0":
        slow_down(int(seed[0]))
    config.data.path, config.model.pretrained = f"{url}/pairs.csv", f"{url}/bert"
    run(config, workdir)
    print("done", flush=True)
