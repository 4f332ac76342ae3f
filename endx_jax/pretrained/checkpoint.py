"""Reader of pretrained encoders: shape, weights, and head."""

import dataclasses
import pathlib

import jax
import numpy as np

from endx_jax import json_files
from endx_jax.errors import EndxError
from endx_jax.models.layout import Padded
from endx_jax.pretrained.architectures import ARCHITECTURES, Architecture, EncoderConfig
from endx_jax.pretrained.locate import locate
from endx_jax.pretrained.sentence_transformers import Head, read_heads
from endx_jax.pretrained.weights import modernise, open_tensors, stack_layers, to_ours


@dataclasses.dataclass(frozen=True)
class PretrainedEncoder:
    """Description of a pretrained encoder, whose weights are read when they are used.

    Attributes:
      folder: of `config.json`, the weights and the tokenizer; it may be inside of a sentence-transformers folder.
      head: pooling, projection, normalisation and maximum length, if the folder states them.
      hugging_face: the contents of its `config.json`.
    """

    folder: pathlib.Path
    head: Head
    hugging_face: dict

    @property
    def architecture(self) -> Architecture:
        """Architecture of the encoder, by `model_type`."""
        return architecture_of(self.hugging_face, self.folder)

    @property
    def config(self) -> EncoderConfig:
        """Shape of the encoder."""
        return self.architecture.read_config(self.hugging_face, self.folder / "config.json")

    def params(self, *, scan_layers: bool = False) -> dict:
        """Reads the weights of `stored_params` as NumPy arrays."""
        return jax.tree.map(np.asarray, self.stored_params(scan_layers=scan_layers))

    def stored_params(self, *, scan_layers: bool = False) -> dict:
        """Returns the weights `{"token_embedder": ..., "encoder": ...}`, float32, as `Stored` arrays.

        If the head has a projection, there is also `projection`.

        Args:
          scan_layers: stacks the layers, as in an encoder with `scan_layers`.

        Raises:
          EndxError: a tensor is missing or its shape does not match `config.json`.
        """
        architecture, config = self.architecture, self.config
        tensors = modernise(open_tensors(self.folder), architecture.older_spellings)
        params = to_ours(tensors, architecture.rules, config.layers, prefixes=architecture.prefixes, where=self.folder)
        _check_shapes(params, config, architecture, self.folder)
        if scan_layers and "encoder" in params:
            params["encoder"] = stack_layers(params["encoder"])
        if self.head.projection is not None:
            params["projection"] = {"kernel": self.head.projection.kernel(config.width)}
        return params


def load(name: str) -> PretrainedEncoder:
    """Finds the pretrained encoder `name` (see `locate`) and reads its description.

    Raises:
      EndxError: it can't be found, its architecture is not supported, or it is two towers.
    """
    return _readable(PretrainedEncoder(**describe(name)))


def load_sides(name: str) -> dict[str, PretrainedEncoder]:
    """Loads a folder by side, `question` and `answer`, which may have separate towers."""
    sides = {side: PretrainedEncoder(**_described(head)) for side, head in read_heads(locate(name)).items()}
    return {side: _readable(pretrained) for side, pretrained in sides.items()}


def describe(name: str) -> dict:
    """Returns the sources of a `PretrainedEncoder`; raises EndxError if they are missing, unreadable or two towers."""
    heads = list(read_heads(locate(name)).values())
    if len({dataclasses.replace(head, max_length=None) for head in heads}) > 1:
        folders = " or ".join(str(folder) for folder in dict.fromkeys(head.encoder for head in heads))
        raise EndxError(
            f"{name} holds one tower for questions and another for answers, which endx_jax.load can take as they are; "
            f"to train, name the folder of one encoder: {folders}"
        )
    return _described(heads[0])


def _described(head: Head) -> dict:
    return {"folder": head.encoder, "head": head, "hugging_face": json_files.read(head.encoder / "config.json")}


def _readable(pretrained: PretrainedEncoder) -> PretrainedEncoder:
    _ = pretrained.config  # raises here, not later, for what we can't build
    return pretrained


def architecture_of(hugging_face: dict, where: object) -> Architecture:
    """Returns the architecture that a `config.json` names."""
    kind = hugging_face.get("model_type", "")
    if kind not in list(ARCHITECTURES):
        raise EndxError(
            f"{where}: model_type {json_files.shown(kind)} is none of the encoders we have: {', '.join(ARCHITECTURES)}"
        )
    return ARCHITECTURES[kind]


def _check_shapes(params: dict, config: EncoderConfig, architecture: Architecture, where: object) -> None:
    """Checks the shapes of tensors against those of the modules."""
    embedder = architecture.embedder(config, np.dtype(np.float32))
    encoder = architecture.encoder(config)
    key = jax.random.key(0)
    ids = jax.ShapeDtypeStruct((1, 2), np.int32)
    embedded = jax.ShapeDtypeStruct((1, 2, config.width), np.float32)
    layout = Padded(jax.ShapeDtypeStruct((1, 2), bool))  # type: ignore[arg-type]  # its shape is enough
    expected = {
        "token_embedder": jax.eval_shape(embedder.init, key, ids),
        "encoder": jax.eval_shape(encoder.init, key, embedded, layout),
    }
    expected = {group: drawn["params"] for group, drawn in expected.items() if drawn}

    def compare(path, wanted, found):
        if wanted.shape != found.shape:
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            raise EndxError(f"{where}: {name} has shape {found.shape} where config.json asks for {wanted.shape}")

    jax.tree_util.tree_map_with_path(compare, expected, params)
