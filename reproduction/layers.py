"""Retrieval by the mean-pooled token vectors of each layer of a model, without and with IDF (RR, Tables 2 to 8)."""

import dataclasses
import json
import pathlib
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from endx_jax import json_files
from endx_jax.batch import Tokens
from endx_jax.data.batches.idf import idf_of_sides
from endx_jax.data.sets.records import RetrievalSet
from endx_jax.data.sets.splits import take
from endx_jax.data.settings import PARAGRAPHS, DataSettings
from endx_jax.data.sources import read_splits
from endx_jax.errors import EndxError
from endx_jax.export.towers import plain
from endx_jax.files import write_text
from endx_jax.inference import EmbeddingModel, load
from endx_jax.inference.encode import TextEncoder
from endx_jax.metrics.ranking import RECALLS
from endx_jax.models.dual_encoder import SIDES, DualEncoder
from endx_jax.models.pooling import mean
from endx_jax.models.static import TokenWeights
from endx_jax.models.tower import Tower
from endx_jax.numerics import unit_rows
from endx_jax.parallel.console import say, showing_progress
from endx_jax.parallel.mesh import MeshSettings, make_mesh
from endx_jax.ranking.evaluate import evaluate_scores
from endx_jax.ranking.results import format_table
from endx_jax.ranking.systems import dense_scores
from reproduction.precision_recall import PrecisionRecall, precision_recall

HELD_OUT, TEST = "held out", "test"
TOKEN_TABLE, EVEN = "token table", "mean of layers"
# Names of unweighted and of IDF-weighted systems end in these.
WEIGHTINGS = ("", " + idf")
HELD_OUT_QUESTIONS = 2000
# Points of a precision-recall curve that are kept, at even steps of recall.
POINTS = 400


def measure_layers(model: str, data: str, folder: pathlib.Path) -> dict:
    """Ranks paragraphs by every layer of a model and by the mean of its layers, without and with IDF.

    Args:
      model: pretrained folder or name, file of word vectors, or workdir.
      data: folder of SQuAD's train and dev files; a tenth of the train file's articles is held out.
      folder: folder of `layers.json`, which is read where it is already there.

    Returns:
      The contents of `layers.json`: for each system and each set its metrics, with `ap` the average precision over all
      pairs of a question and a paragraph, and the precision-recall curve of all pairs.

    Raises:
      EndxError: the folder has a `layers.json` of another model or of other data.
    """
    file = folder / "layers.json"
    if not file.exists():
        splits = read_splits(DataSettings(path=data, pool=PARAGRAPHS, validation_fraction=0.1))
        sets = {HELD_OUT: take(splits.validation, HELD_OUT_QUESTIONS), TEST: splits.test}
        for part, records in sets.items():
            say(f"{part}: {len(records.questions):,} questions, {len(records.candidates):,} candidates of {data}")
        loaded = plain(load(model))
        names = layer_names(loaded.encoder.model.question)
        systems: dict[str, dict] = {}
        for part, records in sets.items():
            pooled = pool_texts(loaded, records)
            for weighting, suffix in enumerate(WEIGHTINGS):
                of_layers = [[side[:, weighting, layer] for side in pooled] for layer in range(len(names))]
                found = dict(zip(names, of_layers, strict=True))
                if len(names) > 1:
                    found[EVEN] = [side[:, weighting].mean(axis=1) for side in pooled]
                for name, (questions, candidates) in found.items():
                    systems.setdefault(name + suffix, {})[part] = _measured(questions, candidates, records.qrels)
        sizes = {
            part: {
                "questions": len(records.questions),
                "candidates": len(records.candidates),
                "right": len(records.pairs),
            }
            for part, records in sets.items()
        }
        contents = {"model": model, "data": data, "sets": sizes, "layers": names, "systems": systems}
        write_text(file, json.dumps(contents) + "\n")
    found = json_files.read_json_file(file)
    measured = {"model": model, "data": data} | {key: found[key] for key in ("model", "data") if key in found}
    if measured != {"model": model, "data": data}:
        other = f"{measured['model']} on {measured['data']}"
        raise EndxError(f"{file} is of {other}, not of {model} on {data}; give another --output")
    return found


def tables(measured: Mapping) -> str:
    """Formats a table for each set."""
    lines = []
    for part in measured["sets"]:
        rows = {system: of_sets[part]["metrics"] for system, of_sets in measured["systems"].items()}
        lines += [f"{part}:", format_table(rows, (*(f"recall@{n}" for n in RECALLS), "avg_recall", "ap")), ""]
    return "\n".join([*lines, "ap: average precision over all pairs of a question and a candidate, ordered by cosine"])


def _measured(questions: np.ndarray, candidates: np.ndarray, qrels: Sequence[Sequence[int]]) -> dict:
    """Ranks candidates by cosine; returns metrics and the precision-recall curve."""
    scores = dense_scores(unit_rows(questions), unit_rows(candidates))
    curve = precision_recall(scores, qrels, candidates=len(candidates))
    metrics = evaluate_scores(scores, qrels, candidates=len(candidates)).metrics
    return {"metrics": metrics | {"ap": curve.average_precision}, "curve": thinned(curve)}


def thinned(curve: PrecisionRecall, points: int = POINTS) -> dict[str, list[float]]:
    """Returns recalls and precisions of at most `points` points, evenly spaced in recall, with the first and last."""
    recall = curve.recall
    kept = np.unique(np.searchsorted(recall, np.linspace(recall[0], recall[-1], points)).clip(max=len(recall) - 1))
    return {"recall": np.round(recall[kept], 6).tolist(), "precision": np.round(curve.precision[kept], 6).tolist()}


def layer_names(tower: Tower) -> tuple[str, ...]:
    """Returns the names of a tower's layers, in the order of `Tower.layers` and `model.layer_weights`.

    Raises:
      EndxError: its encoder does not return its layers.
    """
    outputs = getattr(tower.encoder, "outputs", None)
    if outputs is None:
        raise EndxError(f"{type(tower.encoder).__name__} gives no layers, as BERT, T5 and static vectors do")
    return (TOKEN_TABLE, *outputs)


def pool_layers(model: DualEncoder, params: dict, side: str, tokens: Tokens) -> jax.Array:
    """Pools every layer of one side's tower by the mean, without and with the tower's token weights.

    Args:
      model: both towers, with `token_weights`.
      params: parameters of the towers.
      side: `question` or `answer`.
      tokens: [B, L].

    Returns:
      float32 [B, 2, K, W] of K layers.
    """
    tower, groups = model.tower(side), model.tower_params(params, side)
    weights = groups["token_weights"]["weight"][tokens.ids][..., None]
    layers = list(tower.apply({"params": groups}, tokens, method=tower.layers))
    plain = jnp.stack([mean(layer, tokens.mask) for layer in layers], axis=1)
    return jnp.stack([plain, jnp.stack([mean(layer * weights, tokens.mask) for layer in layers], axis=1)], axis=1)


def pool_texts(loaded: EmbeddingModel, records: RetrievalSet) -> tuple[np.ndarray, np.ndarray]:
    """Pools questions and candidates in every layer, without and with the IDFs of these texts: [Q|N, 2, K, W]."""
    given = loaded.encoder.model
    weighted = {
        side: tower.clone(token_weights=TokenWeights(tower.token_embedder.vocab_size), head=None, layer_weights=None)
        for side in SIDES
        for tower in [given.tower(side)]
    }
    texts = {"question": records.questions, "answer": records.candidates}
    sizes = {side: tower.token_embedder.vocab_size for side, tower in weighted.items()}
    idf = idf_of_sides(texts, loaded.encoder.processors, sizes)
    params = {
        side: given.tower_params(loaded.params, side) | {"token_weights": {"weight": idf[side]}} for side in SIDES
    }
    model = dataclasses.replace(given, question=weighted["question"], answer=weighted["answer"])
    mesh = make_mesh(MeshSettings(), jax.local_devices())
    encoder = TextEncoder(model, loaded.encoder.processors, mesh, part=lambda *given: pool_layers(model, *given))
    question, answer = (encoder(params, side, texts[side], progress=showing_progress()) for side in SIDES)
    return question, answer
