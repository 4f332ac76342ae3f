"""`python -m endx_jax VERB ...`, installed as `endx VERB ...`."""

import sys

from endx_jax.cli.entry import run_verb
from endx_jax.cli.memory import keep_memory


def main() -> int:
    """Runs the verb that the command line names; returns the exit status."""
    keep_memory()
    return run_verb(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
