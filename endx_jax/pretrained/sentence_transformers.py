"""Reader of sentence-transformers folders: pooling, projection, normalisation, length and prompts."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np

from endx_jax import json_files
from endx_jax.errors import EndxError
from endx_jax.models.dual_encoder import TASKS
from endx_jax.pretrained.module_list import MODULES, Module, read_modules
from endx_jax.pretrained.weights import read_tensors

# Their names for poolings, in both notations that their folders have had, to ours.
POOLING_FLAGS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "first"}
POOLING_MODES = {"mean": "mean", "cls": "first"}

ORDER = ("Transformer", "Pooling", "Dense", "Normalize")
IDENTITY = "torch.nn.modules.linear.Identity"
# What files of modules may ask for, by key: see `_hold`.
EMBEDDING = ("sentence_embedding", None)
ENCODER: Mapping[str, tuple] = {
    "transformer_task": ("feature-extraction",),
    "module_output_name": ("token_embeddings",),
    "processing_kwargs": (None, {}),
    "query_expansion": (None,),
}
DENSE = {
    "bias": (False,),
    "activation_function": (IDENTITY,),
    "use_residual": (False,),
    "module_input_name": EMBEDDING,
    "module_output_name": EMBEDDING,
}
DENSE_DEFAULTS = {"bias": True, "activation_function": "torch.nn.modules.activation.Tanh"}
NORMALIZE = {"module_input_name": EMBEDDING, "module_output_name": EMBEDDING}
USAGE = {"model_type": ("SentenceTransformer",), "similarity_fn_name": ("cosine", "dot", None)}
# Where the name that is asked for first is missing; `encode_document` of sentence-transformers says so.
PROMPT_NAMES = {"question": ("query",), "answer": ("document", "passage", "corpus")}

# A greater length, such as the 1e30 of tokenizers that were not told one, is no limit.
NO_LIMIT = 1_000_000


@dataclasses.dataclass(frozen=True)
class Dense:
    """Linear projection of pooled encodings, without bias and activation.

    Attributes:
      folder: of its weights.
      width: E, of its output.
    """

    folder: pathlib.Path
    width: int

    def kernel(self, pooled_width: int) -> np.ndarray:
        """Reads its weights, float32 [P, E]; raises EndxError if they are missing or of another shape."""
        weight = read_tensors(self.folder).get("linear.weight")
        shape = (self.width, pooled_width)
        if weight is None or weight.shape != shape:
            found = "no linear.weight" if weight is None else f"a linear.weight of shape {weight.shape}"
            raise EndxError(f"{self.folder} holds {found} where one of shape {shape} is expected")
        return np.ascontiguousarray(weight.T)


@dataclasses.dataclass(frozen=True)
class Head:
    """Conversion of token encodings to an embedding.

    Attributes:
      encoder: the folder of `config.json` and the weights.
      pooling: `mean` or `first`.
      projection: after pooling; None if there is none.
      normalize: true if embeddings have unit norm.
      max_length: in tokens, possibly more than the encoder's positions; None if the folder does not say.
    """

    encoder: pathlib.Path
    pooling: str = "mean"
    projection: Dense | None = None
    normalize: bool = False
    max_length: int | None = None


@dataclasses.dataclass(frozen=True)
class Usage:
    """Intended use of a model.

    Attributes:
      prompts: prompts by name.
      default_prompt: prompt of texts of no side.
      cosine: true if embeddings are compared by cosine rather than inner product.
      truncate_dim: leading dimensions to keep; None keeps all.
    """

    prompts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    default_prompt: str = ""
    cosine: bool = True
    truncate_dim: int | None = None

    def prompt(self, side: str) -> str:
        """Returns the prompt of a side, `question` or `answer`."""
        return next((self.prompts[name] for name in PROMPT_NAMES[side] if name in self.prompts), "")


def read_heads(folder: pathlib.Path) -> dict[str, Head]:
    """Reads `modules.json` and its modules, by side; a folder without one is a plain encoder with mean pooling.

    Raises:
      EndxError: the folder holds no model, or has modules, an order of modules, or settings that are not supported.
    """
    if not (folder / MODULES).is_file():
        if not (folder / "config.json").is_file():
            raise EndxError(
                f"{folder} holds no model: it has neither {MODULES} nor config.json; give the workdir of a run, an "
                "export, or a Hugging Face or sentence-transformers folder"
            )
        return {side: Head(folder, max_length=_max_length(folder, side)) for side in TASKS}
    return {side: _head(folder, read_modules(folder, side), side) for side in TASKS}


def read_usage(folder: pathlib.Path) -> Usage:
    """Reads `config_sentence_transformers.json`, if there is one.

    Raises:
      EndxError: the kind of model or the similarity is not supported, or the default prompt does not exist.
    """
    file = folder / "config_sentence_transformers.json"
    contents = json_files.read_optional(file)
    _hold(file, contents, USAGE)
    prompts = json_files.mapped(contents.get("prompts") or {}, f"{file}: 'prompts'")
    prompts = {name: _string(prompt or "", f"{file}: the prompt {name!r}") for name, prompt in prompts.items()}
    default = contents.get("default_prompt_name")
    if default is not None and default not in [*prompts]:
        raise EndxError(
            f"{file} has default_prompt_name {json_files.shown(default)}, and no prompt of that name among its prompts"
        )
    width = contents.get("truncate_dim")
    return Usage(
        prompts=prompts,
        default_prompt="" if default is None else prompts[default],
        cosine=contents.get("similarity_fn_name") != "dot",
        truncate_dim=None if width is None else json_files.whole(width, f"{file}: 'truncate_dim'", least=1),
    )


def _head(folder: pathlib.Path, modules: list[Module], side: str) -> Head:
    file, kinds = folder / MODULES, [module.kind for module in modules]
    for kind in kinds:
        if kind not in ORDER:
            raise EndxError(f"{file} has a module {json_files.shown(kind)}; {', '.join(ORDER)} and Router are known")
    if kinds != [kind for kind in ORDER if kind in kinds] or kinds[:1] != ["Transformer"]:
        raise EndxError(
            f"{file} has the modules {', '.join(kinds)}; towers have one each of {', '.join(ORDER)}, in this order"
        )
    places = dict(modules)
    normalize = "Normalize" in places
    if normalize:
        file = places["Normalize"] / "config.json"
        _hold(file, json_files.read_optional(file), NORMALIZE)
    return Head(
        encoder=places["Transformer"],
        pooling=_pooling(places["Pooling"] / "config.json") if "Pooling" in places else "mean",
        projection=_dense(places["Dense"]) if "Dense" in places else None,
        normalize=normalize,
        max_length=_max_length(places["Transformer"], side),
    )


def _max_length(encoder: pathlib.Path, side: str) -> int | None:
    """Returns the maximum length, which older versions of sentence-transformers kept in a separate file."""
    file = encoder / "sentence_bert_config.json"
    own, tokenizer = json_files.read_optional(file), json_files.read_optional(encoder / "tokenizer_config.json")
    _hold(file, own, ENCODER)
    if own.get("do_lower_case") and not tokenizer.get("do_lower_case"):
        raise EndxError(f"{file} asks for do_lower_case of a tokenizer that keeps capitals, which is not supported")
    limits = own.get(f"{TASKS[side]}_length"), own.get("max_seq_length"), tokenizer.get("model_max_length")
    limit = next((limit for limit in limits if limit is not None), NO_LIMIT)
    if isinstance(limit, int | float) and limit >= NO_LIMIT:
        return None
    return json_files.whole(limit, f"{encoder}: the length limit", least=1)


def _pooling(file: pathlib.Path) -> str:
    config = json_files.read(file)
    _hold(file, config, {"include_prompt": (True,)})
    if "pooling_mode" in config:
        modes = config["pooling_mode"]
        found = [modes] if isinstance(modes, str) else json_files.listed(modes, f"{file}: 'pooling_mode'")
        known = POOLING_MODES
    else:
        found = [flag for flag, on in config.items() if flag.startswith("pooling_mode_") and on]
        known = POOLING_FLAGS
    if len(found) != 1 or found[0] not in [*known]:
        raise EndxError(f"{file} asks for pooling {json_files.shown(found)}; one of {', '.join(known)} is supported")
    return known[found[0]]


def _dense(folder: pathlib.Path) -> Dense:
    file = folder / "config.json"
    config = json_files.read(file)
    _hold(file, config, DENSE, DENSE_DEFAULTS)
    return Dense(folder, json_files.whole(config.get("out_features"), f"{file}: 'out_features'", least=1))


def _string(value: object, where: str) -> str:
    """Returns a string with the white space at its ends, which is part of prompts."""
    json_files.text(value, where, may_be_empty=True)
    return cast(str, value)


def _hold(file: pathlib.Path, contents: Mapping, supported: Mapping[str, Sequence], defaults: Mapping = {}) -> None:
    """Raises EndxError for an unsupported value, so that no setting is ignored silently.

    Args:
      file: named in the message.
      contents: of the file.
      supported: by key, the supported values.
      defaults: by key, the value that is meant if it is missing; otherwise the first supported one.
    """
    for key, values in supported.items():
        value = contents.get(key, defaults.get(key, values[0]))
        if value not in values:
            known = " or ".join(map(repr, values))
            raise EndxError(f"{file} asks for {key} {json_files.shown(value)}; only {known} is supported")
