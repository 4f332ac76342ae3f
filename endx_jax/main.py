"""`python -m endx_jax.main --config=CONFIG [--workdir=DIR] [--config.a.b=value ...]`: the same as `endx train`."""

import sys

from endx_jax.cli.entry import run_verb
from endx_jax.cli.memory import keep_memory

if __name__ == "__main__":
    keep_memory()
    sys.exit(run_verb(["train", *sys.argv[1:]]))
