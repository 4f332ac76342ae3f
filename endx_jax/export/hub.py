"""Upload of an export to the Hugging Face hub."""

import os
import pathlib
import shutil
import tempfile

from endx_jax.errors import EndxError, first_line
from endx_jax.export.verify import REPORT
from endx_jax.hub import MALFORMED, PATIENCE
from endx_jax.parallel.console import showing_progress

README = "README.md"
# Files that a repository may have before its first upload: the hub makes them.
EMPTY = {".gitattributes", README}


def push(folder: pathlib.Path, name: str, *, private: bool) -> str:
    """Uploads an export, with the login of the hub's own tools.

    A repository that holds an older export is updated, and its other files are deleted.

    Args:
      folder: export.
      name: repository, `OWNER/NAME`, which is created if it is missing.
      private: true to create a private repository; an existing one keeps its visibility.

    Returns:
      The address of the repository.

    Raises:
      EndxError: the folder is no export, there is no login or it may not write there, the repository holds other
        files, or the hub can't be reached.
    """
    import huggingface_hub
    from huggingface_hub import errors

    if not (folder / REPORT).is_file():
        raise EndxError(f"{folder} holds neither a run nor an export: it has no {REPORT}; export the model first")
    if "/" not in name:
        raise EndxError(f"{name!r} is not a name on the hub: write OWNER/NAME")
    if huggingface_hub.get_token() is None:
        raise EndxError("there is no login for the hub: run `hf auth login`, or set HF_TOKEN to a token that may write")
    if not showing_progress():
        huggingface_hub.utils.disable_progress_bars()
    hub = huggingface_hub.HfApi()
    try:
        uploaded = _files(hub, name)
        if uploaded is None:
            uploaded = set()
            hub.create_repo(name, private=private)
        if uploaded - EMPTY and REPORT not in uploaded:
            raise EndxError(f"{name} on the hub holds files that are not an export: choose another name")
        with tempfile.TemporaryDirectory() as links:
            linked = _linked(folder, pathlib.Path(links) / "export", name)
            message = "Upload by endx_jax"
            done = hub.upload_folder(repo_id=name, folder_path=linked, delete_patterns="*", commit_message=message)
        return done.repo_url
    except errors.HFValidationError:
        raise EndxError(f"{name!r} is not a name on the hub: write OWNER/NAME") from None
    except EndxError:
        raise
    except (OSError, RuntimeError, errors.HTTPError, *MALFORMED) as failure:  # RuntimeError: of a large file
        raise EndxError(
            f"the hub at {hub.endpoint} does not take {name} ({type(failure).__name__}: {first_line(failure)}): check "
            "the connection and HF_ENDPOINT, and that the login of `hf auth login`, or HF_TOKEN, may write there"
        ) from None


def _files(hub, name: str) -> set[str] | None:
    """Returns the files of a repository; None if there is no such repository."""
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        return {file.rfilename for file in hub.model_info(name, timeout=PATIENCE).siblings or ()}
    except RepositoryNotFoundError:
        return None


def _linked(folder: pathlib.Path, links: pathlib.Path, name: str) -> pathlib.Path:
    """Returns a folder of links to an export's files, with a README that has the model's name on the hub."""
    shutil.copytree(folder.absolute(), links, copy_function=os.symlink)
    readme = links / README
    text = readme.read_text(encoding="utf-8")
    if "from encode import" not in text:  # other exports are used in their folder
        text = text.replace("In this folder, with", "With").replace('(".")', f'("{name}")')
    readme.unlink()
    readme.write_text(text, encoding="utf-8")
    return links
