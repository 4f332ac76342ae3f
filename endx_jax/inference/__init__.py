"""`endx_jax.load`: loads an embedding model from a run's workdir, an export, or a pretrained folder or name."""

import dataclasses
import os

import jax
from jax.sharding import Mesh

from endx_jax.buckets import local_copy
from endx_jax.errors import EndxError
from endx_jax.inference.embedding_model import EmbeddingModel, EncodeOptions, ModelSource
from endx_jax.inference.folder import load_folder
from endx_jax.inference.manifest import read_about
from endx_jax.inference.saved import described_folder, load_towers
from endx_jax.json_files import shown
from endx_jax.models import products
from endx_jax.parallel.agreement import decided
from endx_jax.parallel.mesh import MeshSettings, make_mesh

__all__ = ["EmbeddingModel", "EncodeOptions", "ModelSource", "load"]


def load(
    path_or_name: str | os.PathLike, *, mesh: Mesh | None = None, product_dtype: str | None = None
) -> EmbeddingModel:
    """Loads an embedding model.

    Args:
      path_or_name: the workdir of a run whose training has ended, or its `model` folder; or a Hugging Face or
        sentence-transformers folder, such as an export, all of them local or in a bucket (`gs://`, `s3://`); or a model
        name, which `endx_jax.pretrained.locate` looks up among the bundled models and on the Hugging Face Hub.
      mesh: device mesh over which batches are split, and parameters by its axes `fsdp` and `tensor`; None for the
        devices of this process, each with all parameters. Weights are read part by part, and no process holds parts of
        other processes. If the mesh spans several, each of them must encode the same texts and gets all embeddings.
      product_dtype: data type of the factors of linear layers' products on a CPU, as `model.product_dtype`: float32,
        bfloat16 or auto; None for that of the run, or float32, unless a `models.products.product_dtype` is set.

    Raises:
      EndxError: there is no such model, it is incomplete or damaged, or the data type is unknown.

    Examples:
      >>> model = endx_jax.load("all-MiniLM-L6-v2")
      >>> questions = model.encode_query(["How do I send an email?", "How do I reshape an array?"])
      >>> answers = model.encode_document(["smtplib sends e-mail.", "numpy.reshape changes shapes."])
      >>> print(model.similarity(questions, answers).argmax(axis=1))
      [0 1]
    """
    name = str(path_or_name)
    if not isinstance(path_or_name, str | os.PathLike) or not name.strip():
        raise EndxError(f"path_or_name is {shown(path_or_name)}; pass a folder or the name of a model")
    mesh = mesh or make_mesh(MeshSettings(), jax.local_devices())
    with products.product_dtype(product_dtype) as factors:
        if factors == products.AUTO and mesh.is_multi_process:  # whose CPUs may differ
            products.set_product_dtype(decided(lambda: products.chosen_product_dtype(factors), "product-dtype"))
        return _load(path_or_name, mesh)


def _load(path_or_name: str | os.PathLike, mesh: Mesh) -> EmbeddingModel:
    name = str(path_or_name)
    path = local_copy(name, skip=("checkpoints", "*.sqlite"))
    if isinstance(path_or_name, os.PathLike) and not path.exists():
        raise EndxError(f"{name} does not exist; give the workdir of a run, an export, or a folder of a model")
    folder = described_folder(path)
    if folder is None:
        return load_folder(name, mesh)
    about = read_about(folder)
    model = load_towers(folder, about, mesh, name)
    workdir = None if folder == path else path
    source = dataclasses.replace(model.source, workdir=workdir)
    return dataclasses.replace(model, source=source, teacher=about.teacher)
