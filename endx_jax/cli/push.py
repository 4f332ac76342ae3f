"""`endx push`: uploads a run's model or an export to the Hugging Face hub.

The model of a run is exported for sentence-transformers. The login is that of `hf auth login`, or HF_TOKEN.
"""

import argparse
import pathlib
import tempfile


def main(argv: list[str]) -> None:
    """Runs the verb with the arguments of the command line."""
    arguments = _parser().parse_args(argv)

    from endx_jax.export.hub import push
    from endx_jax.inference.manifest import MODEL
    from endx_jax.parallel.console import say

    with tempfile.TemporaryDirectory() as made:
        folder = arguments.model
        if (folder / MODEL).is_dir():
            folder = _exported(folder, pathlib.Path(made) / "export")
        address = push(folder, arguments.name, private=not arguments.public)
    say(f"{arguments.model} is at {address}")


def _exported(workdir: pathlib.Path, output: pathlib.Path) -> pathlib.Path:
    """Exports the model of a run for sentence-transformers; returns the folder."""
    from endx_jax.errors import EndxError
    from endx_jax.export.run import export
    from endx_jax.inference import load

    try:
        export(load(workdir), "sentence-transformers", output)
    except EndxError as failure:
        raise EndxError(f"{failure}; then push the folder that `endx export` writes") from None
    return output


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="endx push", description=__doc__.partition(": ")[2], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=pathlib.Path, metavar="FOLDER", help="workdir of a run, or an export")
    parser.add_argument("name", metavar="OWNER/NAME", help="repository on the hub, created if it is missing")
    parser.add_argument("--public", action="store_true", help="create a public repository [private]")
    return parser
