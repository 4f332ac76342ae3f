"""`python -m endx_jax.main --config=CONFIG [--workdir=DIR] [--config.a.b=value ...]`: the same as `endx train`."""

import sys

from endx_jax.cli.entry import run_verb, use_large_pages

if __name__ == "__main__":
    use_large_pages()
    sys.exit(run_verb(["train", *sys.argv[1:]]))
