"""`endx_jax.load`: a model to encode with, from a run's workdir or a pretrained folder or name."""

import os
import pathlib

import jax
from jax.sharding import Mesh

from endx_jax.experiment import workdir as workdirs
from endx_jax.loading.about import ABOUT
from endx_jax.loading.embedding_model import EmbeddingModel, Source
from endx_jax.loading.exported import load_export
from endx_jax.loading.folder import load_folder
from endx_jax.loading.run import load_run
from endx_jax.parallel.mesh import MeshSettings, make_mesh

__all__ = ["EmbeddingModel", "Source", "load"]


def load(path_or_name: str | os.PathLike, *, mesh: Mesh | None = None) -> EmbeddingModel:
    """Loads a model.

    Args:
      path_or_name: the workdir of a run, whose best checkpoint is taken; a Hugging Face or sentence-transformers
        folder, or one that `endx export` wrote; or a name that `endx_jax.pretrained.locate` knows or finds on the hub.
      mesh: over which batches are split; by default the devices of this process. Where it spans several processes,
        each has to encode the same texts, and has all their embeddings.

    Raises:
      EndxError: when there is no such model, or it is not whole.
    """
    name = str(path_or_name)
    mesh = mesh or make_mesh(MeshSettings(), jax.local_devices())
    folder = pathlib.Path(name).expanduser()
    if (folder / workdirs.MODEL).is_dir():
        return load_run(folder, mesh, name)
    if (folder / ABOUT).is_file():
        return load_export(folder, mesh, name)
    return load_folder(name, mesh)
