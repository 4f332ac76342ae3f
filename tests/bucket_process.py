"""Program of tests: one process of a run of the tiny tower, all of whose files are in a bucket.

python tests/bucket_process.py URL WORKDIR
"""

import functools
import sys

import jax
from tiny_bert import tiny_recipe

from endx_jax.experiment import bucket_lock
from endx_jax.experiment.run import run
from endx_jax.parallel import distributed

if __name__ == "__main__":
    url, workdir = sys.argv[1:]
    bucket_lock.EVERY, bucket_lock.PATIENCE = 0.2, 2.0
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    # The default is 100 seconds.
    jax.distributed.initialize = functools.partial(jax.distributed.initialize, heartbeat_timeout_seconds=20)
    distributed.initialize()
    config = tiny_recipe("", "")
    config.data.path, config.model.pretrained = f"{url}/pairs.csv", f"{url}/bert"
    run(config, workdir)
    print("done", flush=True)
