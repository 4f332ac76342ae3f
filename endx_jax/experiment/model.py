"""Model of a run, built from pretrained folders or read from a workdir."""

import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import re
from collections.abc import Mapping
from typing import Any

import flax.traverse_util
import jax
import numpy as np
from jax.sharding import Mesh

from endx_jax import pretrained
from endx_jax.buckets import local_copy, url_of
from endx_jax.data.batches.idf import idf_of_sides
from endx_jax.data.sets.records import RetrievalSet
from endx_jax.data.tokenization import TextOptions, TextProcessor
from endx_jax.errors import EndxError
from endx_jax.experiment.config import Settings
from endx_jax.experiment.workdir import NOT_COPIED, Folder, read_config
from endx_jax.files import sha256_of, write_text
from endx_jax.inference import load
from endx_jax.inference.encode import TextEncoder
from endx_jax.inference.loading import params_of_run, text_processors
from endx_jax.inference.manifest import METHOD, MODEL, TOWERS, ModelManifest, SideManifest, embeds
from endx_jax.inference.saved import save_model
from endx_jax.methods import METHODS, Method, find_method
from endx_jax.models.dual_encoder import SIDES
from endx_jax.models.lora import BASE, is_adapter, merged, with_adapters
from endx_jax.models.token_embeddings import TOKENS
from endx_jax.parallel.agreement import on_primary
from endx_jax.parallel.console import showing_progress
from endx_jax.parallel.mesh import MeshSettings, make_mesh
from endx_jax.parallel.sharding import fetch_whole, parameter_paths, put, state_shardings
from endx_jax.pretrained.adapters import read_adapters, write_adapters
from endx_jax.pretrained.locate import locate
from endx_jax.pretrained.sentence_transformers import embeds_tokens
from endx_jax.pretrained.settings import NO_PROMPT, ModelSettings
from endx_jax.pretrained.stored import StoredArray
from endx_jax.pretrained.towers import build_dual_encoder, encoder_config, fill_in, stored_params
from endx_jax.ranking.hybrid import Hybrid
from endx_jax.ranking.mining import SimilaritiesOfTexts
from endx_jax.ranking.rerank import PairScorerFactory
from endx_jax.settings import require
from endx_jax.training.checkpoints import abstract, best_step, restore_params
from endx_jax.training.step import without

ADAPTERS = 1 << 20  # folded into the seed's key for new adapters


@dataclasses.dataclass(frozen=True)
class Model:
    """Dual encoder with its objective and text processors, without parameters.

    Attributes:
      settings: settings of the run, completed from the pretrained folder.
      sources: description of the pretrained encoder of each side.
      processors: text processor of each side.
      token_weights: initial token weights of each side, float32 [V]: see `with_token_weights`.
      platform: platform of the run's devices, for `model.dtype=auto`; None for this process's default device.
    """

    settings: Settings
    sources: Mapping[str, pretrained.PretrainedEncoder]
    processors: Mapping[str, TextProcessor]
    token_weights: Mapping[str, np.ndarray] | None = None
    platform: str | None = None

    @functools.cached_property
    def dual_encoder(self):
        """Towers of the run."""
        make_head = functools.partial(self.method.head, self.settings.objective) if self.method.head else None
        return build_dual_encoder(self.settings.model, self.sources, self.platform, make_head, self.processors)

    @property
    def frozen(self) -> tuple[str, ...]:
        """Patterns of the paths of frozen parameters."""
        towers = self.abstract_params["dual_encoder"].values()
        groups = {group for tower in towers for group, params in tower.items() if params}
        never_trained = self.dual_encoder.sharing.frozen | {"token_weights"}
        frozen = groups - {"head"} if self.method.frozen_towers else groups & never_trained
        of_towers = (rf"^dual_encoder/\w+/{group}/" for group in sorted(frozen))
        return (*self.settings.optimizer.frozen, *self.objective.frozen, *of_towers, *self.base)

    @property
    def base(self) -> tuple[str, ...]:
        """Patterns of the paths of the base of adapters, which checkpoints do not hold; none without adapters."""
        return (BASE,) if self.settings.model.lora.rank else ()

    @property
    def base_sha256(self) -> str:
        """Hash of the files of the base's weights; empty without adapters."""
        return self.weights_sha256 if self.base else ""

    @functools.cached_property
    def weights_sha256(self) -> str:
        """Hash of the files from which the initial parameters of the towers are read."""
        files = {
            leaf.file for leaf in jax.tree.leaves(self._towers_without_adapters()) if isinstance(leaf, StoredArray)
        }
        return hashlib.sha256("".join(map(sha256_of, sorted(files))).encode()).hexdigest()

    @functools.cached_property
    def objective(self):
        """Objective of the method for this dual encoder."""
        return self.method.objective(self.dual_encoder, self.settings.objective)

    @property
    def method(self) -> Method:
        """Method that trains the model."""
        return find_method(self.settings.objective.name)

    @functools.cached_property
    def abstract_params(self):
        """Shapes of all parameters of the objective."""
        key = jax.random.key(0)
        return jax.eval_shape(
            lambda key: self.objective.init(key, self._adapted(self.dual_encoder.init(key), key)), key
        )

    def initial_params(self) -> dict:
        """Returns the initial parameters: pretrained ones, those of `model.init_from`, and new ones.

        Arrays from files are read on use: `parallel.sharding.put` reads the parts that it needs.
        """
        key, lora = jax.random.key(self.settings.seed), self.settings.model.lora
        dual_encoder = self._adapted(self._towers_without_adapters(), key)
        if lora.rank and lora.adapter:
            dual_encoder = read_adapters(local_copy(lora.adapter), dual_encoder, self.sources, lora, self.base_sha256)
        return self._with_method(dual_encoder)

    def _with_method(self, dual_encoder: dict) -> dict:
        """Adds the method's initial parameters to those of the dual encoder."""
        key = jax.random.key(self.settings.seed)
        return self.objective.inherit(self.objective.init(key, dual_encoder))

    def _towers_without_adapters(self) -> dict:
        parameters = dict(self._inherited)
        if self.new_parameters:
            key = jax.random.key(self.settings.seed)
            drawn = stored_params(self.dual_encoder, self.settings.model, self.sources, key, self.token_weights)
            parameters = parameter_paths(drawn) | parameters
        return jax.tree.unflatten(
            jax.tree.structure(self._shapes), [parameters[path] for path in parameter_paths(self._shapes)]
        )

    def _adapted(self, dual_encoder: dict, key: jax.Array) -> dict:
        """Adds new adapters to the dual encoder's parameters, if the settings have a rank."""
        lora = self.settings.model.lora
        return with_adapters(dual_encoder, lora, jax.random.fold_in(key, ADAPTERS)) if lora.rank else dual_encoder

    def with_base(self, params: dict, mesh: Mesh) -> dict:
        """Adds the base, which is read from its files, to the parameters of a checkpoint."""
        if not self.base:
            return params
        # Not of `model.lora.adapter`, which may be gone since the run began.
        initial = self._with_method(self._adapted(self._towers_without_adapters(), jax.random.key(0)))
        base = {path: leaf for path, leaf in parameter_paths(initial).items() if re.search(BASE, path)}
        placed = put(base, state_shardings(base, mesh))
        return flax.traverse_util.unflatten_dict(placed | parameter_paths(params), sep="/")

    def without_adapters(self, params: dict, mesh: Mesh) -> dict:
        """Returns the float32 parameters of the same model without adapters, which are merged into the base."""
        if not self.base:
            return params
        merge = functools.partial(merged, settings=self.settings.model.lora)
        return jax.jit(merge, out_shardings=state_shardings(jax.eval_shape(merge, params), mesh))(params)

    @functools.cached_property
    def new_parameters(self) -> tuple[str, ...]:
        """Paths of the dual encoder's parameters that are not in the model of `model.init_from`; all without one.

        Raises:
          EndxError: the other run has no model, or its model has parameters that this one does not have.
        """
        ours = {path: leaf.shape for path, leaf in parameter_paths(self._shapes).items()}
        workdir = self.settings.model.init_from
        for path, leaf in self._inherited.items():
            if ours.get(path) != leaf.shape:
                expected = f"must have the shape {ours[path]}" if path in ours else "is not part of this model"
                raise EndxError(
                    f"model.init_from={workdir} does not have the architecture of model.*: its parameter {path} of "
                    f"shape {leaf.shape} {expected}"
                )
        return tuple(path for path in ours if path not in self._inherited)

    @functools.cached_property
    def _shapes(self) -> dict:
        """Shapes of the parameters of the dual encoder without adapters."""
        return jax.eval_shape(self.dual_encoder.init, jax.random.key(0))

    @functools.cached_property
    def _inherited(self) -> dict[str, StoredArray]:
        """Parameters of the model of `model.init_from` by path."""
        workdir = self.settings.model.init_from
        return params_of_run(local_copy(workdir, skip=NOT_COPIED)) if workdir else {}

    def text_encoder(self, mesh: Mesh) -> TextEncoder:
        """Returns a text encoder of the dual encoder."""
        return TextEncoder(self.dual_encoder, self.processors, mesh, self.settings.evaluation.batch_size)


def build_model(settings: Settings) -> Model:
    """Builds the model of a run from its pretrained encoders and tokenizers.

    Raises:
      EndxError: an encoder or tokenizer is missing, they do not match, or a length exceeds an encoder's positions.
    """
    require(
        not (settings.model.lora.rank and find_method(settings.objective.name).frozen_towers),
        f"objective.name={settings.objective.name} trains heads on frozen towers: set model.lora.rank=0",
    )
    sources = _sources(settings)
    settings = dataclasses.replace(settings, model=_with_prompts(fill_in(settings.model, sources["question"]), sources))
    method = find_method(settings.objective.name)
    require(
        (settings.model.pooling == TOKENS) == method.by_token,
        f"objective.name={method.name} trains {'an' if method.by_token else 'no'} embedding for each token: set "
        f"model.pooling to {TOKENS if method.by_token else f'another than {TOKENS}'}",
    )
    tokenizers = {side: sources[side].folder for side in SIDES}
    return _assemble(settings, sources, tokenizers)


def _with_prompts(settings: ModelSettings, sources: Mapping[str, pretrained.PretrainedEncoder]) -> ModelSettings:
    """Replaces empty prompts by those of the folders, except for new encoders, and the prompt `none` by no prompt."""
    prompts: dict[str, Any] = {}
    for side in SIDES:
        default = "" if settings.encoder else sources[side].usage.prompt(side)
        prompt = getattr(settings, f"{side}_prompt") or default
        prompts[f"{side}_prompt"] = "" if prompt == NO_PROMPT else prompt
    return dataclasses.replace(settings, **prompts)


def read_model(workdir: pathlib.Path) -> Model:
    """Reads the model of a workdir from the description that `save_description` wrote.

    Adapters need the pretrained folders too, for their base.
    """
    settings = read_config(workdir)
    folders = {side: workdir / MODEL / name for side, name in _description(settings).items()}
    if settings.model.lora.rank:
        return _assemble(settings, _sources(settings), folders)
    read = pretrained.load_tokens if settings.model.encoder else pretrained.load_encoder
    return _assemble(settings, {side: read(str(folder)) for side, folder in folders.items()}, folders)


def _sources(settings: Settings) -> dict[str, pretrained.PretrainedEncoder]:
    """Reads the descriptions of the pretrained encoders by side."""
    read = pretrained.load_tokens if settings.model.encoder else pretrained.load_encoder
    question = read(settings.model.pretrained)
    answer = read(settings.model.answer_pretrained) if settings.model.answer_pretrained else question
    return {"question": question, "answer": answer}


def with_token_weights(model: Model, data: RetrievalSet) -> Model:
    """Adds the IDF weights of the questions and answers in `data` if `model.token_weights` is set."""
    if not model.settings.model.token_weights:
        return model
    texts = {"question": data.questions, "answer": data.candidates}
    sizes = {side: source.config.vocab_size for side, source in model.sources.items()}
    return dataclasses.replace(model, token_weights=idf_of_sides(texts, model.processors, sizes))


# Settings of a run's model that are files in its folder, fields of `SideManifest`, or without effect on a model.
ELSEWHERE = ("pretrained", "answer_pretrained", "init_from", "question_prompt", "answer_prompt", "lora")


def save_towers(
    workdir: Folder, model: Model, params: dict, mesh: Mesh, hybrid: Hybrid | None = None, teacher: str = ""
) -> None:
    """Writes the model folder that `endx_jax.load` reads, after training: see `inference.saved`.

    Args:
      workdir: the run's folder, to which `save_description` has written.
      model: trained model.
      params: parameters of the dual encoder.
      mesh: device mesh over which they are split.
      hybrid: fusion with BM25; None for the default.
      teacher: identity of the model whose embeddings these approximate; empty if there is none.

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
    folder = local_copy(name, skip=NOT_COPIED)
    if not folder.is_dir():
        folder = locate(str(name))
    for read in (find_method(method).foreign_scorer for method in METHODS):
        scorer = read(folder) if read else None
        if scorer is not None:
            return scorer
    embedding = embeds_tokens(folder) or (embeddings and embeds(folder))
    method = None if embedding else find_method(read_config(folder).objective.name)
    if method is None or method.by_token:
        loaded = load(name)
        return SimilaritiesOfTexts(loaded.ranked, loaded.by_token, loaded.encoder.processors)
    if method.pair_scorer is None:
        raise EndxError(
            f"{name} holds a run of objective.name={method.name}: rerank needs a pair classifier, a run of "
            "objective.name=pair, or late interaction"
        )
    model, mesh = read_model(folder), make_mesh(MeshSettings(), jax.local_devices())
    params, _ = best_params(name if url_of(name) else folder, model, mesh)
    scorer = method.pair_scorer(model.objective, model.processors, mesh, model.settings.evaluation.batch_size)
    return functools.partial(scorer, params, progress=showing_progress())


def _assemble(settings: Settings, sources: Mapping[str, pretrained.PretrainedEncoder], tokenizers: Mapping) -> Model:
    for side, source in sources.items():
        checked_length(settings, side, source)
    values = vars(settings.data) | vars(settings.model)  # names begin with the side, as in `question_prompt`
    names = [option.name for option in dataclasses.fields(TextOptions)]
    options = {side: TextOptions(**{name: values[f"{side}_{name}"] for name in names}) for side in SIDES}
    return Model(settings, sources, text_processors(sources, tokenizers, options))


def checked_length(settings: Settings, side: str, source: pretrained.PretrainedEncoder) -> int:
    """Returns the maximum length of a side's texts in tokens.

    Raises:
      EndxError: the encoder has fewer positions.
    """
    length, positions = getattr(settings.data, f"{side}_length"), encoder_config(settings.model, source).positions
    if positions is not None and length > positions:
        raise EndxError(f"data.{side}_length is {length}, more than the {positions} positions of {source.folder}")
    return length
