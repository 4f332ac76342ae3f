"""`endx push`: uploads a run's model or an export to the Hugging Face hub.

The model of a run is exported for sentence-transformers. The login is that of `hf auth login`, or HF_TOKEN.
"""

import pathlib
import tempfile

from etils import epath

from endx_jax.cli.parser import main_of


def upload(model: epath.Path, name: str, *, public: bool = False) -> None:
    """Uploads a model, and logs its address.

    Args:
      model: workdir of a run, or an export
      name: repository on the hub, created if it is missing
      public: create a public repository [private]
    """
    from endx_jax.buckets import NOT_OF_MODEL, local_copy
    from endx_jax.errors import EndxError
    from endx_jax.export.hub import push
    from endx_jax.export.run import export
    from endx_jax.inference import load
    from endx_jax.inference.manifest import model_folder
    from endx_jax.parallel.console import say

    with tempfile.TemporaryDirectory() as made:
        folder = local_copy(model, skip=NOT_OF_MODEL)
        try:
            if model_folder(folder) not in (None, folder):  # a run
                folder = pathlib.Path(made) / "export"
                export(load(model), "sentence-transformers", folder)
        except EndxError as failure:
            raise EndxError(f"{failure}; then push the folder that `endx export` writes") from None
        address = push(folder, name, private=not public)
    say(f"{model} is at {address}")


NAMES = {"model": {"metavar": "FOLDER"}, "name": {"metavar": "OWNER/NAME"}}
main = main_of(__doc__, upload, positional=NAMES, **NAMES)
