"""`python -m endx_jax VERB ...`, installed as `endx VERB ...`."""

import sys

from endx_jax.cli.entry import run_verb, use_large_pages


def main() -> int:
    """Runs the verb of the command line; returns the exit status."""
    if sys.argv[1:2] in (["train"], ["plan"]):  # a training step allocates large buffers
        use_large_pages()
    return run_verb(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
