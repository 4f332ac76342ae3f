"""Cross-encoders of sentence-transformers, read as pair classifiers."""

import functools
import pathlib

import jax
import numpy as np

from endx_jax import json_files
from endx_jax.errors import EndxError
from endx_jax.inference.folder import text_processors
from endx_jax.methods.pair.classifier import PairClassifier
from endx_jax.methods.pair.evaluator import PairScorer
from endx_jax.models.dual_encoder import SIDES
from endx_jax.parallel.console import showing_progress
from endx_jax.parallel.mesh import MeshSettings, make_mesh
from endx_jax.parallel.sharding import place, state_shardings
from endx_jax.pretrained.checkpoint import PretrainedEncoder
from endx_jax.pretrained.sentence_transformers import Head
from endx_jax.pretrained.settings import ModelSettings
from endx_jax.pretrained.towers import build_dual_encoder, fill_in, stored_params
from endx_jax.pretrained.weights import open_tensors
from endx_jax.retrieval.rerank import LoadedPairs

CLASSIFIER, SUPPORTED = "ForSequenceClassification", "BertForSequenceClassification"
# Tensors of the scoring head by parameter; kernels are transposed.
TENSORS = {
    ("pooler", "kernel"): "bert.pooler.dense.weight",
    ("pooler", "bias"): "bert.pooler.dense.bias",
    ("classifier", "kernel"): "classifier.weight",
    ("classifier", "bias"): "classifier.bias",
}


def load_cross_encoder(folder: pathlib.Path) -> LoadedPairs | None:
    """Loads a cross-encoder: a BERT with its pooler and a classifier with one output.

    Scores are the classifier's outputs, without the activation that sentence-transformers may apply. A question takes
    at most a quarter of the encoder's positions and the answer the others; sentence-transformers truncates only pairs
    that are too long together.

    Args:
      folder: folder that transformers or sentence-transformers wrote.

    Returns:
      A function of question texts and answer texts to the scorer of their pairs; None if there is no classifier.

    Raises:
      EndxError: the classifier is of another architecture, or a tensor is missing or has another shape.
    """
    contents = json_files.read_optional(folder / "config.json")
    kinds = contents.get("architectures")
    if not isinstance(kinds, list) or not any(str(kind).endswith(CLASSIFIER) for kind in kinds):
        return None
    if SUPPORTED not in kinds or contents.get("model_type") != "bert":
        kind = f"{json_files.shown(kinds[0])} of model_type {json_files.shown(contents.get('model_type'))}"
        raise EndxError(f"{folder} holds a {kind}; of the classifiers only {SUPPORTED} can score pairs")
    source = PretrainedEncoder(folder, Head(folder, max_length=None), contents)
    positions = source.config.positions
    assert positions is not None  # BERT's
    lengths = {"question": positions // 4, "answer": positions + 1 - positions // 4}
    sources = dict.fromkeys(SIDES, source)
    processors = text_processors(sources, dict.fromkeys(SIDES, folder), lengths, dict.fromkeys(SIDES, ""))
    settings = ModelSettings(pretrained=str(folder), pooling="first", sharing="sde", normalize=False)
    settings = fill_in(settings, source)
    classifier = PairClassifier(build_dual_encoder(settings, sources))
    towers = stored_params(classifier.model, settings, sources, jax.random.key(0))
    params = {"dual_encoder": towers, "pair": _head(folder, classifier)}
    mesh = make_mesh(MeshSettings(), jax.local_devices())
    scorer = PairScorer(classifier, processors, mesh)
    return functools.partial(scorer, place(params, state_shardings(params, mesh)), progress=showing_progress())


def _head(folder: pathlib.Path, classifier: PairClassifier) -> dict:
    """Reads the parameters of the scoring head."""
    tensors, width = open_tensors(folder), classifier.model.question.encoder.config.width
    head: dict[str, dict[str, np.ndarray]] = {}
    for (group, kind), name in TENSORS.items():
        outputs = width if group == "pooler" else 1
        expected = (outputs, width) if kind == "kernel" else (outputs,)
        if name not in tensors:
            raise EndxError(f"{folder}: the weights have no tensor {name!r}, a part of {SUPPORTED}")
        if tensors[name].shape != expected:
            raise EndxError(
                f"{folder}: {name} has shape {tensors[name].shape}; a classifier with one output has {expected}"
            )
        tensor = np.asarray(tensors[name])
        head.setdefault(group, {})[kind] = np.ascontiguousarray(tensor.T)
    return head
