"""Reader of pretrained encoders: architecture, weights, and the conversion to embeddings."""

import dataclasses
import functools
import pathlib
import re
import warnings
from collections.abc import Collection, Sequence
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from endx_jax import json_files
from endx_jax.batch import Tokens
from endx_jax.encoders import ARCHITECTURES, Architecture, EncoderConfig
from endx_jax.encoders.architecture import TensorRule
from endx_jax.errors import EndxError
from endx_jax.models.config_keys import ReadKeys, check_keys
from endx_jax.models.static import NoEncoder, StaticConfig
from endx_jax.models.tower import TokenEmbedder, Tower
from endx_jax.models.transformer import TransformerEncoder
from endx_jax.models.transformer_config import LayerKind
from endx_jax.pretrained.locate import locate
from endx_jax.pretrained.sentence_transformers import ADAPTER, Head, Usage, read_heads, read_usage
from endx_jax.pretrained.weights import modernise, open_tensors, paths, to_ours

# Keys of `config.json` that do not change embeddings: origin and format, training, classifiers and generation.
HARMLESS = r"""
_\w+ model_type (base_|tokenizer_|custom_)\w+ (torch_)?dtype transformers\w*(\.js_config)? sentence_transformers
sbert_ce_default_activation_function matryoshka_dimensions \w*(dropout|_drop|pdrop)\w* initializer_\w+ use_cache
(embedding|hidden)_size (id2|num_)labels? label2id problem_type (pooler|summary|classifier|clf|decoder|sparse)_\w+
directionality finetuning_task task_specific_params gradient_checkpointing output_\w+ return_\w+ torchscript
use_bfloat16 tie_\w+ is_encoder_decoder num_decoder_layers scale_decoder_outputs scalable_attention
chunk_size_feed_forward cross_attention_hidden_size \w+_token_ids? bad_words_ids max_(new_tokens|length) min_length
do_sample early_stopping num_beam\w* num_return_sequences temperature top_[kp] typical_p \w+_penalty
\w*no_repeat_ngram_size remove_invalid_values prefix tf_legacy_loss cache_implementation final_logit_softcapping
dense_act_fn is_gated_act n_positions sinusoidal_pos_embds net_structure_type gap_size num_memory_blocks
layer_norm_eps dense_seq_output fused_\w+ max_trained_positions pad_vocab_size_multiple
use_(flash_attn|xentropy|memory_efficient_attention) attn_implementation unpad_inputs deterministic_flash_attn
(reference_compile|repad_logits_with_grad) pretraining_tp position_embedding_type
"""
# Families whose own code on the hub (`auto_map`) computes what transformers does.
PORTED = ("nomic_bert", "gte", "new", "eurobert")
OWN_CODE = "the model's own code (auto_map) is never run"
# Names in `architectures` of encoders with or without a head that embeddings do not use.
ENCODERS = r"\w*(Model|Encoder|ForMaskedLM|ForPreTraining|ForCausalLM|ForConditionalGeneration|LMHead|Classification)"
# Tensors that embeddings do not use: heads, decoders and values that follow from `config.json`.
UNUSED = re.compile(
    r"(.*\.)?(position_ids|inv_freq|masked_bias)|(\w+\.)?(\w*pooler|cls|\w*lm_head|\w*classifier|qa_outputs|score|head|"
    r"decoder|vocab_\w+|\w*predictions\w*|generator_\w+|embed_tokens|shared)\..*"
)


@dataclasses.dataclass(frozen=True)
class PretrainedEncoder:
    """A pretrained encoder whose weights are read on demand.

    Attributes:
      folder: folder of `config.json`, the weights and the tokenizer; may be inside a sentence-transformers folder.
      head: pooling, projection, normalization and length limit; defaults for those that the folder does not state.
      hugging_face: contents of `config.json`.
      root: folder that states the use of the model, of which `folder` may be a part; None if there is none.
    """

    folder: pathlib.Path
    head: Head
    hugging_face: dict
    root: pathlib.Path | None = None

    @functools.cached_property
    def usage(self) -> Usage:
        """Intended use of the model, with its prompts."""
        return read_usage(self.root) if self.root else Usage()

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
        """Returns the weights as `StoredArray` float32 arrays, which are read from their files on demand.

        Returns:
          A tree with `token_embedder`, `encoder` and, if the head has one, `projection`.
        """
        architecture, config = self.architecture, self.config
        tensors = modernise(open_tensors(self.folder), architecture.prefixes, architecture.older_spellings)
        shapes = shapes_of(config)
        rules = [*architecture.rules(config, shapes)]
        params = to_ours(tensors, rules, shapes, where=self.folder)
        _check_all_read(tensors, rules, architecture, self.folder)
        if self.head.projection is not None:
            params["projection"] = self.head.projection.params(config.width)
        return params


def load_encoder(name: str) -> PretrainedEncoder:
    """Finds the pretrained encoder `name` (see `locate`) and reads its description.

    Raises:
      EndxError: it cannot be found, has an unsupported architecture, or consists of two towers.
    """
    encoder = PretrainedEncoder(**encoder_fields(name))
    check_config(encoder.hugging_face, encoder.folder)
    return encoder


def load_sides(folder: pathlib.Path) -> dict[str, PretrainedEncoder]:
    """Returns the encoders of a folder of `locate` by side, `question` and `answer`; they may differ."""
    sides = {side: PretrainedEncoder(**_described(head)) for side, head in read_heads(folder).items()}
    for encoder in sides.values():
        check_config(encoder.hugging_face, encoder.folder)
    return sides


def encoder_fields(name: str) -> dict:
    """Returns the fields of a `PretrainedEncoder`; raises EndxError if missing, unreadable or of two towers."""
    folder = locate(name)
    heads = list(read_heads(folder).values())
    if len({dataclasses.replace(head, max_length=None) for head in heads}) > 1:
        folders = " or ".join(str(folder) for folder in dict.fromkeys(head.encoder for head in heads))
        raise EndxError(
            f"{name} has different towers for questions and answers; endx_jax.load can read it, but "
            f"training needs the folder of one encoder: {folders}"
        )
    return _described(heads[0]) | {"root": folder}


def _described(head: Head) -> dict:
    if (head.encoder / ADAPTER).is_file():
        raise EndxError(
            f"{head.encoder} holds an adapter ({ADAPTER}) without its base: merge it with PEFT's merge_and_unload, and "
            "save that, or train it on with model.lora.adapter and model.lora.rank"
        )
    return {
        "folder": head.encoder,
        "head": head,
        "hugging_face": json_files.read_json_file(head.encoder / "config.json"),
    }


def check_config(hugging_face: dict, folder: pathlib.Path) -> None:
    """Checks all keys of a `config.json`, so that unsupported encoders raise early; warns about unknown keys."""
    where, contents = folder / "config.json", ReadKeys(hugging_face)
    architecture = architecture_of(hugging_face, folder)
    foreign = "auto_map" in hugging_face and hugging_face["model_type"] not in PORTED
    try:
        architecture.config.from_hugging_face(contents, where)
    except EndxError as failure:
        raise EndxError(f"{failure}; {OWN_CODE}: take a model without such code" if foreign else str(failure)) from None
    if foreign:
        warnings.warn(
            f"{where}: {OWN_CODE}: embeddings are those of transformers' {architecture.transformers_class}, and the "
            "model's card may describe others",
            stacklevel=2,
        )
    kinds = hugging_face.get("architectures") or []
    familiar = all(re.fullmatch(ENCODERS, str(kind)) for kind in (kinds if isinstance(kinds, list) else [kinds]))
    further = ["architectures"] * familiar + ["auto_map"]
    keys = " ".join([HARMLESS, *map(re.escape, contents.read), *further])
    check_keys(contents, where, {}, keys, ignored_by="transformers")


def architecture_of(hugging_face: dict, where: object) -> Architecture:
    """Returns the architecture that a `config.json` names."""
    kind = hugging_face.get("model_type", "")
    if "objective" in hugging_face:
        raise EndxError(
            f"{where} is the workdir of a run, not a pretrained model: finish its training, or set model.init_from "
            "to start from its parameters"
        )
    if kind not in list(ARCHITECTURES):
        own_code = f"; {OWN_CODE}" if "auto_map" in hugging_face else ""
        raise EndxError(
            f"{where}: model_type {json_files.shown(kind)} is not supported{own_code}; supported: "
            f"{', '.join(ARCHITECTURES)}"
        )
    return ARCHITECTURES[kind]


def _check_all_read(
    tensors: Collection[str], rules: Collection[TensorRule], architecture: Architecture, where: object
) -> None:
    """Raises EndxError for unknown tensors in a layer that is read, and warns about other unused tensors."""
    read = {rule.theirs for rule in rules}
    unknown = sorted(name for name in {*tensors} - read if not UNUSED.fullmatch(name))
    layers = {match[0] for name in read if (match := re.match(r".*?\.\d+\.", name))}
    for name in unknown:
        if (match := re.match(r".*?\.\d+\.", name)) and match[0] in layers:
            raise EndxError(
                f"{where}: the weights have a tensor {name!r}, unknown in {architecture.transformers_class}: merge "
                "its adapters into the weights, or correct model_type in config.json"
            )
    if unknown:
        shown = ", ".join(unknown[:3]) + (" ..." if unknown[3:] else "")
        warnings.warn(f"{where}: {len(unknown)} tensors of the weights are not used: {shown}", stacklevel=2)


def shapes_of(config: EncoderConfig) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of the parameters of token table and encoder by path.

    Layers of a kind have the same shapes, so that only the layers up to the first of the last new kind are initialised.
    """
    encoder: nn.Module = NoEncoder()
    kinds: Sequence[LayerKind] = ()
    if not isinstance(config, StaticConfig):
        kinds = config.kinds
        count = 1 + max(map(kinds.index, kinds), default=-1)
        encoder = TransformerEncoder(dataclasses.replace(config, layers=count, layer_kinds=kinds[:count]))
    tower = Tower(TokenEmbedder(config.vocab_size, config.table_width), encoder)
    arrays: Any = [jax.ShapeDtypeStruct((1, 1), dtype) for dtype in (np.int32, bool)]
    groups = dict(jax.eval_shape(tower.init, jax.eval_shape(jax.random.key, 0), Tokens(*arrays))["params"])
    if kinds and not config.shared_layers:
        drawn, firsts = groups["encoder"], map(kinds.index, kinds)
        groups["encoder"] = drawn | {f"layers_{n}": drawn[f"layers_{first}"] for n, first in enumerate(firsts)}
    return {path: leaf.shape for path, leaf in paths(groups).items()}
