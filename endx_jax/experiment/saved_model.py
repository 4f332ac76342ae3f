"""A run's model on disk: its folder, which `endx_jax.load` reads, its parameters, and its use as a scorer of pairs."""

import dataclasses
import functools
import json
import os
import pathlib

import jax
from jax.sharding import Mesh

from endx_jax.buckets import NOT_OF_MODEL, local_copy, url_of
from endx_jax.errors import EndxError
from endx_jax.experiment.config import Settings
from endx_jax.experiment.model import Model, read_encoders
from endx_jax.experiment.workdir import Folder, read_config
from endx_jax.files import write_text
from endx_jax.inference import load
from endx_jax.inference.manifest import METHOD, MODEL, TOWERS, ModelManifest, SideManifest, embeds
from endx_jax.inference.saved import save_model
from endx_jax.methods import find_method
from endx_jax.models.lora import is_adapter
from endx_jax.models.token_embeddings import TOKENS
from endx_jax.parallel.agreement import on_primary
from endx_jax.parallel.console import showing_progress
from endx_jax.parallel.mesh import MeshSettings, make_mesh
from endx_jax.parallel.sharding import fetch_whole, parameter_paths, state_shardings
from endx_jax.pretrained.adapters import write_adapters
from endx_jax.pretrained.locate import locate
from endx_jax.pretrained.sentence_transformers import embeds_tokens
from endx_jax.ranking.hybrid import Hybrid
from endx_jax.ranking.mining import SimilaritiesOfTexts
from endx_jax.ranking.rerank import PairScorerFactory
from endx_jax.training.checkpoints import abstract, best_step, restore_params
from endx_jax.training.step import without

# Settings of a run's model that are files in its folder, fields of `SideManifest`, or without effect on a model.
ELSEWHERE = ("pretrained", "answer_pretrained", "init_from", "question_prompt", "answer_prompt", "lora")


def save_towers(
    workdir: Folder,
    model: Model,
    params: dict,
    mesh: Mesh,
    hybrid: Hybrid | None = None,
    teacher: str = "",
    system: str = "trained",
) -> None:
    """Writes the model folder that `endx_jax.load` reads, after training: see `inference.saved`.

    Args:
      workdir: the run's folder, to which `save_description` has written.
      model: trained model.
      params: parameters of the dual encoder.
      mesh: device mesh over which they are split.
      hybrid: fusion with BM25; None for the default.
      teacher: identity of the model whose embeddings these approximate; empty if there is none.
      system: `trained`, or `untrained` for the parameters before training.

    Raises:
      EndxError: the workdir can't be written to.
    """
    places, settings, objective = _description(model.settings), model.settings.model, model.settings.objective
    towers = {name: value for name, value in dataclasses.asdict(settings).items() if name not in ELSEWHERE}
    encoder = model.text_encoder(mesh)
    manifest = ModelManifest(
        TOWERS,
        (workdir / MODEL).parent.name,
        encoder.width(params),
        normalize=settings.normalize,
        cosine=settings.normalize,
        sides={s: SideManifest(folder=places[s], **texts.stated()) for s, texts in encoder.processors.items()},
        teacher=teacher,
        towers=towers,
        method={"name": objective.name, "settings": dataclasses.asdict(objective)} if model.method.head else None,
        hybrid=dataclasses.asdict(hybrid) if hybrid else None,
        system=system,
    )
    save_model(workdir / MODEL, manifest, params)


def save_description(workdir: Folder, model: Model) -> None:
    """Writes the encoders' `config.json`, the tokenizers' files and the name of the method into the workdir."""
    about_method = {"name": model.method.name, "embeds": model.method.embeds}
    write_text(workdir / MODEL / METHOD, json.dumps(about_method, indent=1) + "\n")
    side_of = {name: side for side, name in _description(model.settings).items()}
    for name, side in side_of.items():
        folder = workdir / MODEL / name
        write_text(folder / "config.json", json.dumps(model.sources[side].hugging_face, indent=1) + "\n")
        model.processors[side].tokenizer.save(folder)


def _description(settings: Settings) -> dict[str, str]:
    """Returns the subfolder of each side in the model folder; it is the same if both have one pretrained encoder."""
    return {"question": "", "answer": "answer" if settings.model.answer_pretrained else ""}


def best_params(workdir: str | os.PathLike, model: Model, mesh: Mesh) -> tuple[dict, int]:
    """Restores the objective's parameters from a workdir's best checkpoint, with the base of adapters.

    Returns:
      The parameters, sharded as in training, and the step of the checkpoint.

    Raises:
      EndxError: there is no checkpoint, or it is damaged.
    """
    step = best_step(workdir, model.settings.evaluation.metric)
    if step is None:
        raise EndxError(f"{workdir} holds no checkpoint yet; continue its training, or choose another workdir")
    shapes = without(model.abstract_params, model.base)
    return model.with_base(restore_params(workdir, step, abstract(shapes, state_shardings(shapes, mesh))), mesh), step


def save_adapters(workdir: Folder, model: Model, params: dict) -> None:
    """Writes the adapters of a run's dual encoder in PEFT's format beside its model, if it has some."""
    if not model.base:
        return
    towers = model.settings.model
    adapters = {path: fetch_whole(x) for path, x in parameter_paths(params).items() if is_adapter(path)}
    bases = {"question": towers.pretrained, "answer": towers.answer_pretrained or towers.pretrained}

    def write() -> None:
        write_adapters(workdir / MODEL, adapters, model.sources, towers.lora, bases, model.base_sha256)

    on_primary(write, "adapters-saved")


def read_model(workdir: pathlib.Path) -> Model:
    """Reads the model of a workdir from the description that `save_description` wrote.

    Adapters need the pretrained folders too, for their base.
    """
    settings = read_config(workdir)
    folders = {side: workdir / MODEL / name for side, name in _description(settings).items()}
    return Model(settings, *read_encoders(settings, folders))


def load_pair_scorer(name: str | os.PathLike, *, embeddings: bool = False) -> PairScorerFactory:
    """Loads a scorer of pairs: a run whose method scores pairs or embeds every token, or a foreign reranker.

    Args:
      name: workdir, or folder or hub id of a cross-encoder, of late interaction or of another foreign reranker; with
        `embeddings` also what `load` takes.
      embeddings: true to score by inner products if the model embeds texts, as for mining and distillation.

    Returns:
      A function of Q questions and N answers to the function that scores their pairs, given by rows: see
      `ranking.rerank`.

    Raises:
      EndxError: there is no such model, it embeds texts and `embeddings` is false, or its checkpoint is missing or
        damaged.
    """
    from endx_jax.methods.rerankers import load_foreign_scorer

    folder = local_copy(name, skip=NOT_OF_MODEL)
    if not folder.is_dir():
        folder = locate(str(name))
    if foreign := load_foreign_scorer(folder):
        return foreign
    embedding = embeds_tokens(folder) or (embeddings and embeds(folder))
    settings = None if embedding else read_config(folder)
    if settings is None or settings.model.pooling == TOKENS:
        loaded = load(name)
        return SimilaritiesOfTexts(loaded.ranked, loaded.by_token, loaded.encoder.processors)
    method = find_method(settings.objective.name)
    if method.pair_scorer is None:
        raise EndxError(
            f"{name} holds a run of objective.name={method.name}: rerank needs a pair classifier, a run of "
            "objective.name=pair, or late interaction"
        )
    model, mesh = read_model(folder), make_mesh(MeshSettings(), jax.local_devices())
    params, _ = best_params(name if url_of(name) else folder, model, mesh)
    scorer = method.pair_scorer(model.objective, model.processors, mesh, model.settings.evaluation.batch_size)
    return functools.partial(scorer, params, progress=showing_progress())
