"""Model of a run: towers with their objective, and the parameters that it begins with."""

import dataclasses
import functools
import hashlib
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.traverse_util
import jax
import numpy as np
from jax.sharding import Mesh

from endx_jax import pretrained
from endx_jax.buckets import NOT_OF_MODEL, local_copy
from endx_jax.data.tokenization import TextOptions, TextProcessor
from endx_jax.errors import EndxError, located
from endx_jax.experiment.config import Settings
from endx_jax.experiment.finalize import finalize, prompts
from endx_jax.files import sha256_of
from endx_jax.inference.encode import TextEncoder
from endx_jax.inference.loading import model_of_run, text_processors
from endx_jax.inference.manifest import ModelManifest
from endx_jax.methods import Method, find_method
from endx_jax.models.dual_encoder import SIDES, DualEncoder
from endx_jax.models.lora import BASE, merged, with_adapters
from endx_jax.parallel.sharding import parameter_paths, put, state_shardings
from endx_jax.pretrained.adapters import read_adapters
from endx_jax.pretrained.stored import StoredArray
from endx_jax.pretrained.towers import build_dual_encoder, encoder_config, stored_params

ADAPTERS = 1 << 20  # folded into the seed's key for new adapters


@dataclasses.dataclass(frozen=True)
class Model:
    """Dual encoder with its objective and text processors, without parameters.

    Attributes:
      settings: final settings of the run.
      sources: description of the pretrained encoder of each side.
      processors: text processor of each side.
      token_weights: initial token weights of each side, float32 [V]: see `idf_of_sides`.
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
        parameters = dict(self.inherited[1])
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
        for path, leaf in self.inherited[1].items():
            if ours.get(path) != leaf.shape:
                expected = f"must have the shape {ours[path]}" if path in ours else "is not part of this model"
                raise EndxError(
                    f"model.init_from={workdir} does not have the architecture of model.*: its parameter {path} of "
                    f"shape {leaf.shape} {expected}"
                )
        return tuple(path for path in ours if path not in self.inherited[1])

    @functools.cached_property
    def _shapes(self) -> dict:
        """Shapes of the parameters of the dual encoder without adapters."""
        return jax.eval_shape(self.dual_encoder.init, jax.random.key(0))

    @functools.cached_property
    def inherited(self) -> tuple[ModelManifest | None, dict[str, StoredArray]]:
        """Description of the model of `model.init_from`, and its parameters by path; None and none without one."""
        workdir = self.settings.model.init_from
        return model_of_run(local_copy(workdir, skip=NOT_OF_MODEL)) if workdir else (None, {})

    def text_encoder(self, mesh: Mesh) -> TextEncoder:
        """Returns a text encoder of the dual encoder."""
        return TextEncoder(self.dual_encoder, self.processors, mesh, self.settings.evaluation.batch_size)


def with_remat(model: DualEncoder, remat: str) -> DualEncoder:
    """Returns the towers with another rematerialisation policy; those without layers have none."""
    towers = {side: model.tower(side) for side in SIDES if hasattr(model.tower(side).encoder, "remat")}
    changed: dict[str, Any] = {
        side: tower.clone(encoder=tower.encoder.clone(remat=remat)) for side, tower in towers.items()
    }
    return dataclasses.replace(model, **changed)


def read_sources(
    settings: Settings,
    folders: Mapping[str, pathlib.Path] | None = None,
    readers: Sequence[Callable] = (pretrained.load_encoder, pretrained.load_tokens),
) -> dict[str, pretrained.PretrainedEncoder]:
    """Reads the descriptions of the pretrained encoders by side.

    Args:
      settings: settings of the run.
      folders: folders by side; None for those that the settings name.
      readers: functions that describe an encoder, and the token table below a new encoder, by name.

    Raises:
      EndxError: an encoder is missing or not supported.
    """
    given, read = settings.model, functools.cache(readers[bool(settings.model.encoder)])
    names, sources = ("pretrained", "answer_pretrained" if given.answer_pretrained else "pretrained"), {}
    for side, name in zip(SIDES, names, strict=True):
        with located("" if folders else f"model.{name}"):
            sources[side] = read(str(folders[side] if folders else getattr(given, name)))
    return sources


def read_encoders(
    settings: Settings, folders: Mapping[str, pathlib.Path] | None = None
) -> tuple[dict[str, pretrained.PretrainedEncoder], dict[str, TextProcessor]]:
    """Reads the descriptions of the pretrained encoders and the text processors by side.

    Args:
      settings: settings of the run; with `folders`, final ones.
      folders: for a finished run, folders by side of its tokenizers and, unless it trains adapters, of its encoders;
        None for those that the settings name.

    Raises:
      EndxError: an encoder or a tokenizer is missing, they do not match, an encoder is not supported, or a length
        exceeds its positions.
    """
    sources = read_sources(settings, None if settings.model.lora.rank else folders)
    chosen = prompts(settings.model, sources)
    if folders:
        chosen = {side: getattr(settings.model, f"{side}_prompt") for side in SIDES}
    options = {side: TextOptions(checked_length(settings, side, sources[side]), chosen[side]) for side in SIDES}
    return sources, text_processors(sources, folders or {side: one.folder for side, one in sources.items()}, options)


def build_model(settings: Settings) -> Model:
    """Builds the model for settings that may not be final, without training data.

    Raises:
      EndxError: as `read_encoders`, or the method can't train such towers.
    """
    sources, processors = read_encoders(settings)
    return Model(finalize(settings, sources), sources, processors)


def checked_length(settings: Settings, side: str, source: pretrained.PretrainedEncoder) -> int:
    """Returns the maximum length of a side's texts in tokens; raises EndxError if the encoder has fewer positions."""
    length, positions = getattr(settings.data, f"{side}_length"), encoder_config(settings.model, source).positions
    if positions is not None and length > positions:
        raise EndxError(f"data.{side}_length is {length}, more than the {positions} positions of {source.folder}")
    return length
