"""Model folder of a run, written when training ends and read by `endx_jax.load`.

`endx.json` describes the towers by their settings. `config.json` and the tokenizer's files are those of the pretrained
model (`answer/` has those of the answer tower, if it has another one). `towers.safetensors` holds the parameters,
float32, under their paths, such as `shared/encoder/layers_0/mlp_up/kernel`. Any tower that `config.model` describes,
with new encoders too, can be loaded without the method that trained it. If a method has added heads to the towers, the
description names the method, whose entry in `models.heads.HEADS` makes them.
"""

import collections
import dataclasses
import pathlib

from endx_jax.errors import EndxError
from endx_jax.inference.manifest import MANIFEST, WEIGHTS, ModelManifest, write_manifest
from endx_jax.parallel.agreement import on_primary
from endx_jax.parallel.distributed import is_primary
from endx_jax.parallel.sharding import fetch_whole, parameter_paths
from endx_jax.pretrained.stored import write_file


def save_model(folder: pathlib.Path, manifest: ModelManifest, params: dict) -> None:
    """Writes the weights of a trained model, one array at a time, and then its manifest.

    The folder has no manifest until the weights are written. Every process must call this; the primary writes.

    Args:
      folder: model folder, which already contains the configurations and tokenizers of the pretrained models.
      manifest: manifest without the hash of the weights, which is added.
      params: parameters of the towers; may be split over processes.

    Raises:
      EndxError: the folder can't be written to.
    """
    leaves = parameter_paths(params)
    arrays = map(fetch_whole, leaves.values())
    failure, sha256 = None, ""
    if is_primary():
        try:
            (folder / MANIFEST).unlink(missing_ok=True)
            for unfinished in folder.glob(f".{WEIGHTS}.*"):  # of a killed process
                unfinished.unlink()
            sha256 = write_file(folder / WEIGHTS, {path: leaf.shape for path, leaf in leaves.items()}, arrays)
        except EndxError as raised:
            failure = raised
    collections.deque(arrays, maxlen=0)  # every process must take part in fetching arrays that are split

    def describe() -> None:
        if failure:
            raise failure
        write_manifest(folder, dataclasses.replace(manifest, weights_sha256=sha256))

    on_primary(describe, "model-saved")
