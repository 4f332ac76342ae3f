"""Cross-encoders of sentence-transformers and transformers, read as pair classifiers."""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import NamedTuple

import jax
import numpy as np

from endx_jax import json_files
from endx_jax.data.tokenization import TextOptions
from endx_jax.encoders.architecture import LEAVES, TensorRule
from endx_jax.errors import EndxError
from endx_jax.inference.loading import LONGEST, text_processors
from endx_jax.methods.pair.classifier import POOLER_ACTIVATIONS, PairClassifier, Pooler
from endx_jax.methods.pair.evaluator import ClassifierScorer
from endx_jax.models.config_keys import HuggingFaceConfig, bool_key, check_supported, enum_key, float_key
from endx_jax.models.dual_encoder import SIDES, DualEncoder
from endx_jax.parallel.mesh import MeshSettings, make_mesh
from endx_jax.pretrained.checkpoint import PretrainedEncoder, check_config
from endx_jax.pretrained.module_list import MODULES, read_list
from endx_jax.pretrained.sentence_transformers import CLASSIFIER, NO_LIMIT, Head, max_length, read_usage, scores_pairs
from endx_jax.pretrained.towers import finished_towers
from endx_jax.pretrained.weights import open_tensors, paths, to_ours
from endx_jax.ranking.rerank import PairScorerFactory

TOKENIZER = "tokenizer_config.json"
# Tokens of the pairs that are scored together on an accelerator.
TOKENS = 1 << 15


class Classifier(NamedTuple):
    """Classifier of a family: the layers above the encoding of the first token.

    Attributes:
      kind: its class in transformers.
      dense: name of the pooler's linear layer.
      output: name of the linear layer with one output.
      activation: activation between the two, of `POOLER_ACTIVATIONS`.
    """

    kind: str
    dense: str
    output: str
    activation: str = "tanh"


OF_ROBERTA = ("classifier.dense", "classifier.out_proj")
CLASSIFIERS: Mapping[str, Classifier] = {
    "bert": Classifier("BertForSequenceClassification", "bert.pooler.dense", "classifier"),
    "roberta": Classifier("RobertaForSequenceClassification", *OF_ROBERTA),
    "xlm-roberta": Classifier("XLMRobertaForSequenceClassification", *OF_ROBERTA),
    "camembert": Classifier("CamembertForSequenceClassification", *OF_ROBERTA),
    "mpnet": Classifier("MPNetForSequenceClassification", *OF_ROBERTA),
    "electra": Classifier("ElectraForSequenceClassification", *OF_ROBERTA, activation="gelu"),
    "distilbert": Classifier("DistilBertForSequenceClassification", "pre_classifier", "classifier", activation="relu"),
    "albert": Classifier("AlbertForSequenceClassification", "albert.pooler", "classifier"),
    "modernbert": Classifier("ModernBertForSequenceClassification", "head.dense", "classifier"),
    "gte": Classifier("GteForSequenceClassification", "gte.pooler.dense", "classifier"),
    "new": Classifier("NewForSequenceClassification", "new.pooler.dense", "classifier"),
}
"""Supported classifiers by the `model_type` of `config.json`."""


@dataclasses.dataclass(frozen=True)
class ModernBertHead(HuggingFaceConfig):
    """Keys of `config.json` that describe ModernBERT's classifier, which has a norm (`head.norm`) after its pooler."""

    pooling: str = enum_key("classifier_pooling", choices=("cls", "mean"), default="cls")
    activation: str = enum_key("classifier_activation", choices=POOLER_ACTIVATIONS, default="gelu")
    use_bias: bool = bool_key("classifier_bias", default=False)
    norm_epsilon: float = float_key("norm_eps", default=1e-5)
    norm_bias: bool = bool_key("norm_bias", default=False)


def load_cross_encoder(folder: pathlib.Path) -> PairScorerFactory | None:
    """Loads a cross-encoder: an encoder with a classifier of one output.

    Scores are the classifier's outputs, without the activation that sentence-transformers may apply. Prompt, maximum
    length and truncation of pairs are those of its `CrossEncoder`.

    Args:
      folder: folder that transformers or sentence-transformers wrote.

    Returns:
      A function of question texts and answer texts to the scorer of their pairs; None if there is no classifier.

    Raises:
      EndxError: the classifier is of another family, its tokenizer joins texts in another way, or a tensor is missing
        or has another shape.
    """
    contents = json_files.read_optional(folder / "config.json")
    kinds = contents.get("architectures")
    kinds = kinds if isinstance(kinds, list) else []
    if not scores_pairs(folder) or not any(str(kind).endswith(CLASSIFIER) for kind in kinds):
        return None
    family = contents.get("model_type")
    form = CLASSIFIERS.get(family) if isinstance(family, str) else None
    if form is None or form.kind not in kinds:
        raise EndxError(
            f"{folder} holds a {json_files.shown(kinds[0])} of model_type {json_files.shown(family)}; the classifiers "
            f"that can score pairs are {', '.join(each.kind for each in CLASSIFIERS.values())}"
        )
    pooling, pooler = "first", Pooler(form.activation)
    if family == "modernbert":
        fields = vars(ModernBertHead.from_hugging_face(contents, folder / "config.json"))
        pooling, pooler = "mean" if fields.pop("pooling") == "mean" else "first", Pooler(**fields)
    source, towers, params = read_towers(folder, contents, pooling)
    check_supported(json_files.read_optional(folder / TOKENIZER), folder / TOKENIZER, {"truncation_side": ("right",)})
    if (folder / MODULES).is_file() and [module.kind for module in read_list(folder)] != ["Transformer"]:
        raise EndxError(f"{folder / MODULES}: a cross-encoder may have no modules beside its Transformer")
    prompts = {"question": read_usage(folder, "CrossEncoder").default_prompt, "answer": ""}
    options = {side: TextOptions(NO_LIMIT, prompts[side]) for side in SIDES}  # cuts depend on whole lengths
    stated = max_length(folder, "question", "sequence-classification")
    positions = min(length for length in (source.config.positions or LONGEST, stated) if length)
    processors = text_processors(dict.fromkeys(SIDES, source), dict.fromkeys(SIDES, folder), options)
    between, segments = processors["question"].tokenizer.joining()
    classifier = PairClassifier(towers, pooler, segments)
    mesh = make_mesh(MeshSettings(), jax.local_devices())
    scorer = ClassifierScorer(classifier, processors, mesh, max(1, TOKENS // positions), between, positions)
    return scorer.with_params({"dual_encoder": params, "pair": _head(folder, classifier, form)})


def read_towers(folder: pathlib.Path, contents: dict, pooling: str) -> tuple[PretrainedEncoder, DualEncoder, dict]:
    """Returns the encoder in the folder of a reranker, `config.json` of which is given, with this pooling.

    Returns:
      Its description, the towers, which are one, and their parameters, read on demand.
    """
    check_config(contents, folder)
    source = PretrainedEncoder(folder, Head(folder, pooling), contents)
    return source, *finished_towers(dict.fromkeys(SIDES, source))


def _head(folder: pathlib.Path, classifier: PairClassifier, form: Classifier) -> dict:
    """Reads the parameters of the scoring head."""
    tensors, width = open_tensors(folder), classifier.model.question.encoder.config.width
    name = f"{form.output}.weight"
    if name in tensors and tensors[name].shape != (1, width):
        raise EndxError(
            f"{folder}: {name} has shape {tensors[name].shape}; a classifier with one output has {(1, width)}"
        )
    vector = jax.ShapeDtypeStruct((1, width), np.float32)
    drawn = jax.eval_shape(classifier.head.init, jax.random.key(0), vector)["params"]
    shapes = {path: leaf.shape for path, leaf in paths(drawn).items()}
    theirs = {"pooler": form.dense, "norm": "head.norm", "classifier": form.output}
    rules = []
    for path in shapes:
        module, _, leaf = path.partition("/")
        rules.append(TensorRule(f"{theirs[module]}.{LEAVES[f'/{leaf}']}", (path,), transpose=leaf == "kernel"))
    return to_ours(tensors, rules, shapes, where=folder)
