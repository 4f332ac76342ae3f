"""Reader of pretrained encoders: architecture, weights, and the conversion to embeddings."""

import dataclasses
import pathlib
from collections.abc import Mapping

import jax
import numpy as np

from endx_jax import json_files
from endx_jax.encoders import ARCHITECTURES, Architecture, EncoderConfig
from endx_jax.errors import EndxError
from endx_jax.models.layout import Padded
from endx_jax.models.tower import TokenEmbedder
from endx_jax.pretrained.locate import locate
from endx_jax.pretrained.sentence_transformers import ADAPTER, Head, read_heads
from endx_jax.pretrained.weights import modernise, open_tensors, paths, to_ours


@dataclasses.dataclass(frozen=True)
class PretrainedEncoder:
    """A pretrained encoder whose weights are read on demand.

    Attributes:
      folder: folder of `config.json`, the weights and the tokenizer; may be inside a sentence-transformers folder.
      head: pooling, projection, normalization and length limit; defaults for those that the folder does not state.
      hugging_face: contents of `config.json`.
    """

    folder: pathlib.Path
    head: Head
    hugging_face: dict

    @property
    def architecture(self) -> Architecture:
        """Architecture named by `model_type`."""
        return architecture_of(self.hugging_face, self.folder)

    @property
    def config(self) -> EncoderConfig:
        """Config of the encoder."""
        return self.architecture.config.from_hugging_face(self.hugging_face, self.folder / "config.json")

    @property
    def pooling(self) -> str:
        """Name of the pooling; if not stated, of the last token for causal attention, else the mean."""
        return self.head.pooling or ("last" if self._causal else "mean")

    @property
    def append_eos(self) -> bool:
        """True if texts must end with EOS: for causal encoders that state no pooling."""
        return self._causal and not self.head.pooling

    @property
    def _causal(self) -> bool:
        return getattr(self.config, "causal", False)

    def params(self) -> dict:
        """Reads the weights of `stored_params` as NumPy arrays."""
        return jax.tree.map(np.asarray, self.stored_params())

    def stored_params(self) -> dict:
        """Returns the weights as `Stored` float32 arrays, which are read from their files on demand.

        Returns:
          A tree with `token_embedder`, `encoder` and, if the head has one, `projection`.

        Raises:
          EndxError: a tensor is missing or does not have the shape given by `config.json`.
        """
        architecture, config = self.architecture, self.config
        tensors = modernise(open_tensors(self.folder), architecture.older_spellings)
        _check_depth(tensors, architecture, config, self.folder)
        shapes = shapes_of(architecture, config)
        rules = architecture.rules(config, shapes)
        params = to_ours(tensors, rules, shapes, prefixes=architecture.prefixes, where=self.folder)
        if self.head.projection is not None:
            params["projection"] = self.head.projection.params(config.width)
        return params


def load(name: str) -> PretrainedEncoder:
    """Finds the pretrained encoder `name` (see `locate`) and reads its description.

    Raises:
      EndxError: it cannot be found, has an unsupported architecture, or consists of two towers.
    """
    return _readable(PretrainedEncoder(**describe(name)))


def load_sides(name: str) -> dict[str, PretrainedEncoder]:
    """Returns the encoders of a folder by side, `question` and `answer`; they may differ."""
    sides = {side: PretrainedEncoder(**_described(head)) for side, head in read_heads(locate(name)).items()}
    return {side: _readable(pretrained) for side, pretrained in sides.items()}


def describe(name: str) -> dict:
    """Returns the fields of a `PretrainedEncoder`; raises EndxError if missing, unreadable or of two towers."""
    heads = list(read_heads(locate(name)).values())
    if len({dataclasses.replace(head, max_length=None) for head in heads}) > 1:
        folders = " or ".join(str(folder) for folder in dict.fromkeys(head.encoder for head in heads))
        raise EndxError(
            f"{name} has different towers for questions and answers; endx_jax.load can read it, but "
            f"training needs the folder of one encoder: {folders}"
        )
    return _described(heads[0])


def _described(head: Head) -> dict:
    if (head.encoder / ADAPTER).is_file():
        raise EndxError(
            f"{head.encoder} holds an adapter ({ADAPTER}) without its base: merge it with PEFT's merge_and_unload, and "
            "save that, or train it on with model.lora.adapter"
        )
    return {"folder": head.encoder, "head": head, "hugging_face": json_files.read(head.encoder / "config.json")}


def _readable(pretrained: PretrainedEncoder) -> PretrainedEncoder:
    _ = pretrained.config  # raises early for unsupported encoders
    return pretrained


def architecture_of(hugging_face: dict, where: object) -> Architecture:
    """Returns the architecture that a `config.json` names."""
    kind = hugging_face.get("model_type", "")
    if "objective" in hugging_face:
        raise EndxError(
            f"{where} is the workdir of a run, not a pretrained model: finish its training, or set model.init_from "
            "to start from its parameters"
        )
    if kind not in list(ARCHITECTURES):
        own_code = "; its own code (auto_map) is never run" if "auto_map" in hugging_face else ""
        raise EndxError(
            f"{where}: model_type {json_files.shown(kind)} is not supported{own_code}; supported: "
            f"{', '.join(ARCHITECTURES)}"
        )
    return ARCHITECTURES[kind]


def _check_depth(tensors: Mapping, architecture: Architecture, config: EncoderConfig, where: object) -> None:
    """Raises EndxError unless the weights have the last layer; the shapes of all layers take seconds for a thousand."""
    template = architecture.names(config).layer
    last = template.format(n=0 if config.shared_layers else config.layers - 1) if template else ""
    if not any(f"{last}." in name for name in tensors):
        raise EndxError(
            f"{where}: the weights have no tensor {last!r}.*, but config.json has {config.layers:,} layers; check that "
            "it belongs to this model"
        )


def shapes_of(architecture: Architecture, config: EncoderConfig) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of the parameters of token table and encoder by path."""
    embedder = TokenEmbedder(config.vocab_size, config.table_width)
    encoder = architecture.encoder(config)
    key = jax.random.key(0)
    embedded = jax.ShapeDtypeStruct((1, 1, config.table_width), np.float32)
    layout = Padded(jax.ShapeDtypeStruct((1, 1), bool))  # type: ignore[arg-type]  # its shape is enough
    expected = {
        "token_embedder": jax.eval_shape(embedder.init, key, jax.ShapeDtypeStruct((1, 1), np.int32)),
        "encoder": jax.eval_shape(encoder.init, key, embedded, layout),
    }
    groups = {group: drawn["params"] for group, drawn in expected.items() if drawn}
    return {path: leaf.shape for path, leaf in paths(groups).items()}
