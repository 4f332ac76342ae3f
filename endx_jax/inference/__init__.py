"""`endx_jax.load`: loads an embedding model from a run's workdir, or a pretrained folder or name."""

import dataclasses
import os

import jax
from jax.sharding import Mesh

from endx_jax.buckets import local_copy
from endx_jax.errors import EndxError
from endx_jax.inference.about import TOWERS, read_about
from endx_jax.inference.embedding_model import EmbeddingModel, Source
from endx_jax.inference.folder import load_folder
from endx_jax.inference.saved import described_folder, load_towers
from endx_jax.json_files import shown
from endx_jax.parallel.mesh import MeshSettings, make_mesh

__all__ = ["EmbeddingModel", "Source", "load"]


def load(path_or_name: str | os.PathLike, *, mesh: Mesh | None = None) -> EmbeddingModel:
    """Loads an embedding model.

    Args:
      path_or_name: the workdir of a run whose training has ended, or its `model` folder; a Hugging Face or
        sentence-transformers folder, such as one of `endx export`, all of them local or in a bucket (`gs://`, `s3://`);
        or a model name, which `endx_jax.pretrained.locate` looks up among the bundled models and on the Hugging Face
        Hub.
      mesh: device mesh over which batches are split; None for the devices of this process. If it spans several
        processes, each of them must encode the same texts and gets all embeddings.

    Raises:
      EndxError: there is no such model, it is incomplete or damaged, or it is a StableHLO export.
    """
    name = str(path_or_name)
    if not isinstance(path_or_name, str | os.PathLike) or not name.strip():
        raise EndxError(f"path_or_name is {shown(path_or_name)}; pass a folder or the name of a model")
    mesh = mesh or make_mesh(MeshSettings(), jax.local_devices())
    path = local_copy(name, skip=("checkpoints", "*.sqlite"))
    if isinstance(path_or_name, os.PathLike) and not path.exists():
        raise EndxError(f"{name} does not exist; give the workdir of a run, or a folder of a model")
    folder = described_folder(path)
    if folder is None:
        return load_folder(name, mesh)
    about = read_about(folder)
    if about.format != TOWERS:
        raise EndxError(
            f"{name} is a StableHLO export, for programs without endx_jax: encode with its encode.py, or load the "
            "workdir of the run or a copy of its folder model"
        )
    model = load_towers(folder, about, mesh, name)
    workdir = None if folder == path else path
    return dataclasses.replace(model, source=dataclasses.replace(model.source, workdir=workdir))
