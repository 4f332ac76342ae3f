"""Reader of sentence-transformers folders: pooling, projection, normalization, length and prompts."""

import dataclasses
import functools
import pathlib
import re
import warnings
from collections.abc import Mapping, Sequence

import numpy as np

from endx_jax import json_files
from endx_jax.encoders.architecture import TensorRule
from endx_jax.errors import EndxError
from endx_jax.models.config_keys import check_keys, check_supported
from endx_jax.models.dual_encoder import TASKS
from endx_jax.models.token_embeddings import TOKENS, UNPOOLED, TokenPooling, TokenSettings
from endx_jax.pretrained import multi_vector
from endx_jax.pretrained.module_list import MODULES, Module, read_list, read_modules
from endx_jax.pretrained.weights import open_tensors, to_ours

# Names of poolings in sentence-transformers, mapped to ours.
POOLING_MODES = {"mean": "mean", "cls": "first", "lasttoken": "last", "weightedmean": "weighted_mean"}

ORDER = ("Transformer", "Pooling", "Dense", "Normalize")
CLASSIFIER = "ForSequenceClassification"
# Config of an adapter, which is refused.
ADAPTER = "adapter_config.json"
# Classes of activation functions, mapped to ours.
ACTIVATIONS = {"torch.nn.modules.activation.Tanh": "tanh", "torch.nn.modules.linear.Identity": "identity"}
# Supported values of the keys in module files, the default first: see `check_keys`.
EMBEDDING = ("sentence_embedding", None)
# Families in the name of a Transformer's file; newer versions always use the first.
FAMILIES = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
# Outputs of a Transformer and of its model, by task.
OUTPUTS = {
    "feature-extraction": ("token_embeddings", "last_hidden_state"),
    "sequence-classification": ("scores", "logits"),
    "text-generation": ("causal_logits", "logits"),
}
ENCODER = r"(max_seq|query|document)_length do_lower_case unpad_inputs transformer_task modality_config"
# Arguments of transformers in a Transformer's file, also by their older names, and arguments without effect here.
ARGUMENTS = {
    "tokenizer_args": "model_max_length padding_side use_fast",
    "model_args": r"(torch_)?dtype attn_implementation low_cpu_mem_usage use_safetensors",
    "config_args": "use_cache",
}
ARGUMENTS |= {new: ARGUMENTS[f"{new.partition('_')[0]}_args"] for new in ("model_kwargs", "config_kwargs")}
ARGUMENTS["processor_kwargs"] = ARGUMENTS["tokenizer_args"]
ON_THE_HUB = " trust_remote_code cache_dir token local_files_only device_map"
DENSE = {
    "activation_function": tuple(ACTIVATIONS),
    "bias": (True, False),
    "use_residual": (False,),
}
# Of late interaction.
PLAIN_DENSE = {"bias": (False,), "activation_function": ("torch.nn.modules.linear.Identity",)}
USAGE_FILE = "config_sentence_transformers.json"
USAGE = "__version__ prompts default_prompt_name truncate_dim activation_fn keep_in_fp32_modules"
# Names of prompts by side, in the order in which they are tried. sentence-transformers 5 and 6 only use the first: its
# models always have one of that name, which is empty unless the folder has one.
PROMPT_NAMES = {"question": ("query",), "answer": ("document", "passage", "corpus")}

# Lengths from here on, such as the 1e30 of tokenizers without a limit, mean no limit.
NO_LIMIT = 1_000_000


@dataclasses.dataclass(frozen=True)
class Dense:
    """Projection of pooled encodings.

    Attributes:
      folder: folder of its weights.
      width: output width E.
      bias: has a bias.
      function: name of its activation function, of `tower.FUNCTIONS`.
      before: linear projection before this one; both together are one.
    """

    folder: pathlib.Path
    width: int
    bias: bool = False
    function: str = "identity"
    before: "Dense | None" = None

    @property
    def has_bias(self) -> bool:
        """True if this projection or one before it has a bias."""
        return self.bias or (self.before is not None and self.before.has_bias)

    def params(self, pooled_width: int) -> dict[str, np.ndarray]:
        """Reads the parameters, `kernel` float32 [P, E] and perhaps `bias` [E], of this and those before it."""
        before = self.before.params(pooled_width) if self.before else {}
        rules = [TensorRule("linear.weight", ("kernel",), transpose=True)]
        rules += [TensorRule("linear.bias", ("bias",))] * self.bias
        shapes = {"kernel": (self.before.width if self.before else pooled_width, self.width), "bias": (self.width,)}
        tensors = open_tensors(self.folder)
        own = {name: np.asarray(part) for name, part in to_ours(tensors, rules, shapes, where=self.folder).items()}
        if unknown := {*tensors} - {rule.theirs for rule in rules}:
            raise EndxError(f"{self.folder}: the weights have a tensor {min(unknown)!r}, which a Dense does not have")
        params = own | {name: np.matmul(part, own["kernel"]) for name, part in before.items()}
        if self.bias and "bias" in before:
            params["bias"] += own["bias"]
        return params


@dataclasses.dataclass(frozen=True)
class Head:
    """Conversion of token encodings to an embedding.

    Attributes:
      encoder: folder of `config.json` and the weights.
      pooling: name of the pooling, of `pooling.POOLINGS`; empty if not stated.
      projection: projection after pooling, or None.
      normalize: scales embeddings to unit norm.
      max_length: maximum length in tokens, which may exceed the encoder's positions; None if not stated.
      tokens: which tokens have an embedding, for the pooling `tokens`; None for other poolings.
      token_pooling: pooling of the embeddings of documents' tokens.
    """

    encoder: pathlib.Path
    pooling: str = "mean"
    projection: Dense | None = None
    normalize: bool = False
    max_length: int | None = None
    tokens: TokenSettings | None = None
    token_pooling: TokenPooling = UNPOOLED


@dataclasses.dataclass(frozen=True)
class Usage:
    """Intended use of a model.

    Attributes:
      prompts: prefixes of texts, by name.
      default_prompt: prefix of texts that are encoded without a side.
      cosine: compares embeddings by cosine rather than inner product.
      truncate_dim: number of leading dimensions to keep; None keeps all.
    """

    prompts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    default_prompt: str = ""
    cosine: bool = True
    truncate_dim: int | None = None

    def prompt(self, side: str) -> str:
        """Returns the prompt of a side, `question` or `answer`."""
        return next((self.prompts[name] for name in PROMPT_NAMES[side] if name in self.prompts), "")


def read_heads(folder: pathlib.Path) -> dict[str, Head]:
    """Reads the heads of a folder by side; a folder without `modules.json` is an encoder that states no pooling.

    Raises:
      EndxError: the folder has no model, or has an unsupported module, order of modules or setting.
    """
    if not (folder / MODULES).is_file():
        if not any((folder / name).is_file() for name in ("config.json", ADAPTER)):
            raise EndxError(
                f"{folder} contains no model: it has neither {MODULES} nor config.json; give the workdir of a run, an "
                "export, or a Hugging Face or sentence-transformers folder"
            )
        return {side: Head(folder, pooling="", max_length=max_length(folder, side)) for side in TASKS}
    return {side: _head(folder, read_modules(folder, side), side) for side in TASKS}


def scores_pairs(folder: pathlib.Path) -> bool:
    """Returns true if a folder of another library holds a cross-encoder or another reranker."""
    if (folder / MODULES).is_file():
        kind = json_files.read_optional(folder / USAGE_FILE).get("model_type")
        return kind == "CrossEncoder" or any(module.kind == "LogitScore" for module in read_list(folder))
    kinds = json_files.read_optional(folder / "config.json").get("architectures")
    return isinstance(kinds, list) and any(str(kind).endswith(CLASSIFIER) for kind in kinds)


def embeds_tokens(folder: pathlib.Path) -> bool:
    """Returns true if a folder of another library holds a model of late interaction."""
    return multi_vector.late_kind(json_files.read_optional(folder / USAGE_FILE)) is not None


def read_usage(folder: pathlib.Path, kind: str = "SentenceTransformer") -> Usage:
    """Reads `config_sentence_transformers.json` of a `kind` of model; returns defaults if it is missing.

    Raises:
      EndxError: the kind of model or the similarity is not supported, or the default prompt is missing.
    """
    file = folder / USAGE_FILE
    contents = json_files.read_optional(file)
    late = multi_vector.late_kind(contents)
    if late and kind == "SentenceTransformer":
        kind = late
    keys = f"{USAGE} {multi_vector.PYLATE_KEYS}" if kind == multi_vector.PYLATE else USAGE
    only = {"model_type": (kind,), "similarity_fn_name": multi_vector.SIMILARITIES.get(kind, ("cosine", "dot", None))}
    check_keys(contents, file, only, keys, ignored_by="sentence-transformers")
    prompts = json_files.as_object(contents.get("prompts") or {}, f"{file}: 'prompts'")
    prompts = {
        name: json_files.as_text(prompt or "", f"{file}: the prompt {name!r}", may_be_empty=True, strip=False)
        for name, prompt in prompts.items()
    }
    if kind == multi_vector.PYLATE:
        prompts = multi_vector.with_prefixes(contents, prompts, file)
    default = contents.get("default_prompt_name")
    if default is not None and default not in [*prompts]:
        raise EndxError(f"{file}: default_prompt_name is {json_files.shown(default)}, which is not in its prompts")
    width = contents.get("truncate_dim")
    usage = Usage(
        prompts=prompts,
        default_prompt="" if default is None else prompts[default],
        cosine=not late and contents.get("similarity_fn_name") != "dot",
        truncate_dim=None if width is None else json_files.as_whole(width, f"{file}: 'truncate_dim'", least=1),
    )
    if kind != "CrossEncoder" and "document" not in prompts and usage.prompt("answer"):
        warnings.warn(
            f"{file}: documents have the prompt {usage.prompt('answer')!r} unless another is given; in "
            "sentence-transformers, which only uses a prompt named 'document', they have none",
            stacklevel=2,
        )
    return usage


def _head(folder: pathlib.Path, modules: list[Module], side: str) -> Head:
    file, kinds = folder / MODULES, [module.kind for module in modules]
    usage_file = folder / USAGE_FILE
    usage = json_files.read_optional(usage_file)
    late = multi_vector.late_kind(usage)
    order, over = (multi_vector.ORDER, multi_vector.OVER_TOKENS) if late else (ORDER, EMBEDDING)
    names = {"module_input_name": over, "module_output_name": (*over, None)}
    for kind in kinds:
        if kind not in order:
            reason = ", as its own code is never run" if "." in kind else ""
            raise EndxError(
                f"{file}: module {json_files.shown(kind)} is not supported{reason}; take a model with no modules but "
                f"{', '.join(order)} and Router"
            )
    dense = [module.folder for module in modules if module.kind == "Dense"]
    expected = [kind for kind in order for _ in range(kinds.count(kind) if kind == "Dense" else kind in kinds)]
    if kinds != expected or kinds[:1] != ["Transformer"]:
        raise EndxError(
            f"{file} has the modules {', '.join(kinds)}; supported are {', '.join(order)}, in this order, each once "
            "except Dense"
        )
    places = dict(modules)
    normalize = "Normalize" in places
    if normalize:
        file = places["Normalize"] / "config.json"
        check_keys(json_files.read_optional(file), file, names)
    encoder, tokens = places["Transformer"], None
    limit = max_length(encoder, side, further="query_expansion" if late == multi_vector.KIND else "")
    if late == multi_vector.KIND:
        mask, file = places.get("MultiVectorMask"), _transformer_file(encoder)
        mask = (mask or folder / "MultiVectorMask") / "config.json"
        tokens, limit = multi_vector.read_tokens(json_files.read_optional(file), mask, file, side, limit)
    elif late:
        tokens, limit = multi_vector.read_pylate(usage, usage_file, side)
    only = DENSE | names | (PLAIN_DENSE if late else {})
    return Head(
        encoder=encoder,
        pooling=TOKENS if late else _pooling(places["Pooling"] / "config.json") if "Pooling" in places else "",
        projection=functools.reduce(functools.partial(_dense, only=only), dense, None),
        normalize=normalize or late == multi_vector.PYLATE,
        max_length=limit,
        tokens=tokens,
        token_pooling=multi_vector.read_token_pooling(places.get(multi_vector.POOLING)),
    )


def _transformer_file(encoder: pathlib.Path) -> pathlib.Path:
    files = [encoder / f"sentence_{name}_config.json" for name in FAMILIES]
    return next((file for file in files if json_files.read_optional(file)), files[0])


def max_length(encoder: pathlib.Path, side: str, task: str = "feature-extraction", *, further: str = "") -> int | None:
    """Returns the length limit of a Transformer, from its file, or else from the tokenizer's.

    `further` are keys of the file that the caller reads.
    """
    file = _transformer_file(encoder)
    config, tokenizer = json_files.read_optional(file), json_files.read_optional(encoder / "tokenizer_config.json")
    check_supported(config, file, {"transformer_task": (task,)})
    output, theirs = OUTPUTS[task]
    only: dict[str, Sequence] = {"module_output_name": (output,), "processing_kwargs": (None, {})}
    if task != "text-generation":
        # With `message` beside `text`, sentence-transformers puts texts into the chat template.
        only["modality_config"] = (None, {"text": {"method": "forward", "method_output_name": theirs}})
    check_keys(config, file, only, " ".join([ENCODER, further, *ARGUMENTS]))
    for name, keys in ARGUMENTS.items():
        given = json_files.as_object(config.get(name) or {}, f"{file}: {name!r}")
        check_keys(given, f"{file}: {name!r}", {}, keys + ON_THE_HUB)
        tokenizer = tokenizer | {key: value for key, value in given.items() if key == "model_max_length"}
        config = config | ({"max_seq_length": None} if "model_max_length" in given else {})
    if config.get("do_lower_case") and not tokenizer.get("do_lower_case"):
        raise EndxError(f"{file}: do_lower_case with a cased tokenizer is not supported")
    of_tokenizer = tokenizer.get("model_max_length"), tokenizer.get("max_len")  # the latter in older files
    limits = config.get(f"{TASKS[side]}_length"), config.get("max_seq_length"), *of_tokenizer
    limit = next((limit for limit in limits if limit is not None), NO_LIMIT)
    if isinstance(limit, int | float) and limit >= NO_LIMIT:
        return None
    return json_files.as_whole(limit, f"{encoder}: the length limit", least=1)


def _pooling(file: pathlib.Path) -> str:
    config = json_files.read_json_file(file)
    check_keys(config, file, {"include_prompt": (True,)}, r"pooling_mode\w* (word_)?embedding_dimension")
    if "pooling_mode" in config:
        modes = config["pooling_mode"]
        given = [modes] if isinstance(modes, str) else json_files.as_list(modes, f"{file}: 'pooling_mode'")
    else:  # in the older notation, with flags such as pooling_mode_mean_tokens
        flags = [flag for flag, on in config.items() if flag.startswith("pooling_mode_") and on]
        given = [re.sub("^pooling_mode_|_tokens?$", "", flag) for flag in flags]
    if len(given) != 1 or given[0] not in [*POOLING_MODES]:
        valid = ", ".join(POOLING_MODES)
        raise EndxError(f"{file}: pooling {json_files.shown(given)} is not supported; choose one of {valid}")
    return POOLING_MODES[given[0]]


def _dense(before: Dense | None, folder: pathlib.Path, only: Mapping[str, Sequence]) -> Dense:
    file = folder / "config.json"
    config = json_files.read_json_file(file)
    check_supported({name: config.get(name, DENSE[name][0]) for name in PLAIN_DENSE}, file, only)
    check_keys(config, file, only, "in_features out_features")
    if before is not None and before.function != "identity":
        raise EndxError(f"{before.folder / 'config.json'}: an activation_function between two Dense is not supported")
    return Dense(
        folder,
        json_files.as_whole(config.get("out_features"), f"{file}: 'out_features'", least=1),
        bias=config.get("bias", True),
        function=ACTIVATIONS[config.get("activation_function", DENSE["activation_function"][0])],
        before=before,
    )
