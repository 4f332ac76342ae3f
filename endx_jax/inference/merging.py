"""Merging: a model whose parameters are weighted means of the parameters of several models of one architecture.

Runs that begin at the same pretrained parameters often have a mean that is better than each (model soups, Wortsman et
al. 2022, arXiv 2203.05482). The mean of a run and the pretrained model itself loses less on other data than the run
(WiSE-FT, Wortsman et al. 2021, arXiv 2109.01903).
"""

import dataclasses
import math
import os
import shutil
from collections.abc import Sequence

import numpy as np

from endx_jax.buckets import NOT_OF_MODEL, local_copy
from endx_jax.errors import EndxError
from endx_jax.files import expanded, replace_folder, staging_folder
from endx_jax.inference import EmbeddingModel, load
from endx_jax.inference.identity import describe_tower
from endx_jax.inference.manifest import MANIFEST, WEIGHTS, model_folder, read_manifest, write_manifest
from endx_jax.models.dual_encoder import SIDES
from endx_jax.parallel.sharding import parameter_paths
from endx_jax.pretrained.stored import write_file
from endx_jax.settings import require
from endx_jax.uploads import uploads

# Patterns of what is true of the weights of the first model only: its card, and its adapters apart from their base.
OF_WEIGHTS = WEIGHTS, MANIFEST, "README.md", "adapter", "*_adapter"


@uploads()
def merge_models(sources: Sequence[str], output: str | os.PathLike, weights: Sequence[float] = ()) -> None:
    """Writes the weighted mean of models as a model folder, which `endx_jax.load` reads.

    All models are in memory at once. The folder has the first model's prompts and lengths, and the default fusion with
    BM25.

    Args:
      sources: two or more models that `endx_jax.load` takes; the first is the workdir or the model folder of a run.
      output: folder to write, which may be in a bucket; an existing one is replaced if it is a model folder.
      weights: weight of each model, 0 or more; they are divided by their sum. Empty for equal weights.

    Raises:
      EndxError: a model cannot be loaded, is the one before training of its run, or differs from the first in more than
        its parameters; the weights are wrong; the output is another folder or can't be written to.
    """
    weights, output = tuple(weights) or (1.0,) * len(sources), expanded(output)
    require(len(sources) > 1, "give two or more models to merge")
    require(len(weights) == len(sources), f"{len(weights)} weights for {len(sources)} models: give one for each")
    valid = all(math.isfinite(weight) and weight >= 0 for weight in weights) and sum(weights) > 0
    require(valid, f"weights are {list(weights)}; each must be 0 or more, and one of them more than 0")
    if output.exists() and not (output / MANIFEST).is_file():
        raise EndxError(f"{output} exists and is no model folder: choose another output")

    folders = [model_folder(local_copy(source, skip=NOT_OF_MODEL)) for source in sources]
    for source, folder in zip(sources, folders, strict=True):
        trained = folder is None or read_manifest(folder).system == "trained"
        require(trained, f"{source} holds the model before training, since search was better by it: name other models")
    first = folders[0]
    if first is None:
        raise EndxError(f"{sources[0]} is no run: name a workdir, or its folder 'model', first")
    manifest = read_manifest(first)
    models = [load(source) for source in sources]
    for model in models[1:]:
        _check_alike(models[0], model)
    leaves = [parameter_paths(model.params) for model in models]
    fractions = np.array(weights) / sum(weights)
    means = (
        sum(fraction * np.asarray(params[path], np.float64) for fraction, params in zip(fractions, leaves, strict=True))
        for path in leaves[0]
    )
    with staging_folder(output) as fresh:
        shutil.copytree(first, fresh, ignore=shutil.ignore_patterns(*OF_WEIGHTS), dirs_exist_ok=True)
        sha256 = write_file(fresh / WEIGHTS, {path: leaf.shape for path, leaf in leaves[0].items()}, means)
        teacher = manifest.teacher if {model.teacher for model in models} == {manifest.teacher} else ""
        described = dataclasses.replace(manifest, name=output.name, weights_sha256=sha256, hybrid=None, teacher=teacher)
        write_manifest(fresh, described)
        replace_folder(fresh, output)


def _check_alike(first: EmbeddingModel, other: EmbeddingModel) -> None:
    """Raises EndxError unless two models differ only in the values of their parameters, prompts and lengths."""
    shapes = [{path: leaf.shape for path, leaf in parameter_paths(model.params).items()} for model in (first, other)]
    differing = sorted(path for path in shapes[0] | shapes[1] if shapes[0].get(path) != shapes[1].get(path))
    if differing:
        raise EndxError(
            f"{other.name} does not have the parameters of {first.name}, such as {differing[0]}: merge models of one "
            "architecture and one sharing"
        )
    for side in SIDES:
        towers = [describe_tower(model.encoder.model.tower(side)) for model in (first, other)]
        tokenizers = [model.encoder.processors[side].tokenizer.fingerprint for model in (first, other)]
        if towers[0] != towers[1] or tokenizers[0] != tokenizers[1]:
            part = "tokenizer" if towers[0] == towers[1] else "architecture, pooling or norm"
            raise EndxError(f"{other.name} has another {part} of the {side} tower than {first.name}")
