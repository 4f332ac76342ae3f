"""The model of a run: from its pretrained folder, or from the description and checkpoints in its workdir."""

import dataclasses
import functools
import json
import pathlib
from collections.abc import Mapping

import jax
import numpy as np
from jax.sharding import Mesh

from endx_jax import pretrained
from endx_jax.data.idf import idf_of_sides
from endx_jax.data.records import RetrievalSet
from endx_jax.data.token_cache import TokenCache
from endx_jax.data.tokenization import Preparation, Tokenizer
from endx_jax.errors import EndxError
from endx_jax.experiment.config import Settings
from endx_jax.experiment.workdir import MODEL, read_config
from endx_jax.files import write_text
from endx_jax.models.dual_encoder import SIDES
from endx_jax.objectives import OBJECTIVES
from endx_jax.parallel.sharding import state_shardings
from endx_jax.pretrained.towers import build_dual_encoder, encoder_config, fill_in, stored_params
from endx_jax.retrieval.encode import TextEncoder
from endx_jax.training.checkpoints import abstract, best_step, restore_params
from endx_jax.training.optimizer import parameter_paths


@dataclasses.dataclass(frozen=True)
class Model:
    """A dual encoder with its objective and tokenizers, without parameters.

    Attributes:
      settings: of the run, with what the pretrained folder decides filled in.
      sources: the pretrained encoders' descriptions, by side; the same one twice where both towers start from it.
      preparations: how texts of each side become tokens.
      token_weights: by side, float32 [V], that the towers begin with: see `with_token_weights`.
    """

    settings: Settings
    sources: Mapping[str, pretrained.PretrainedEncoder]
    preparations: Mapping[str, Preparation]
    token_weights: Mapping[str, np.ndarray] | None = None

    @functools.cached_property
    def dual_encoder(self):
        """The towers."""
        return build_dual_encoder(self.settings.model, self.sources)

    @property
    def frozen(self) -> tuple[str, ...]:
        """Patterns of the paths of parameters that are not trained."""
        towers = self.abstract_params()["dual_encoder"].values()
        there = {group for groups in towers for group, params in groups.items() if params}
        groups = there & (self.dual_encoder.sharing.frozen | {"token_weights"})
        return (*self.settings.optimizer.frozen, *(rf"^dual_encoder/\w+/{group}/" for group in sorted(groups)))

    @property
    def trains_heads_alone(self) -> bool:
        """Whether all that is below the towers' heads is frozen, so that it can be computed once."""
        return self.dual_encoder.sharing.trains_heads_alone

    @functools.cached_property
    def objective(self):
        """The method that trains them."""
        return OBJECTIVES[self.settings.objective.name][1](self.dual_encoder, self.settings.objective)

    def abstract_params(self):
        """Shapes of all the objective's parameters."""
        return self._abstract_params

    @functools.cached_property
    def _abstract_params(self):
        key = jax.random.key(0)
        return jax.eval_shape(lambda key: self.objective.init(key, self.dual_encoder.init(key)), key)

    def initial_params(self, mesh: Mesh) -> dict:
        """All parameters before training: the dual encoder's pretrained ones, or another run's best.

        What comes from a pretrained folder is still to be read: `parallel.sharding.place` reads what it needs.
        """
        settings, key = self.settings.model, jax.random.key(self.settings.seed)
        kept = _warm_start(pathlib.Path(settings.init_from), self, mesh) if settings.init_from else {}
        if self.new_parameters:
            drawn = stored_params(self.dual_encoder, settings, self.sources, key, self.token_weights)
            kept = parameter_paths(drawn) | kept
        abstract = self.abstract_params()["dual_encoder"]
        dual_encoder = jax.tree.unflatten(
            jax.tree.structure(abstract), [kept[path] for path in parameter_paths(abstract)]
        )
        return self.objective.init(key, dual_encoder)

    @functools.cached_property
    def new_parameters(self) -> tuple[str, ...]:
        """Paths of the dual encoder's parameters that do not come from `model.init_from`; without one these are all.

        Raises:
          EndxError: when the other run has parameters for which there is no place.
        """
        ours, theirs = _shapes(self), {}
        if self.settings.model.init_from:
            workdir = pathlib.Path(self.settings.model.init_from)
            theirs = _shapes(read_model(workdir))
        for path, shape in theirs.items():
            if ours.get(path) != shape:
                raise EndxError(
                    f"model.init_from={workdir} holds another architecture than model.* describes: {path} {shape} has "
                    f"no place in it{f', which has {ours[path]} there' if path in ours else ''}"
                )
        return tuple(path for path in ours if path not in theirs)

    def text_encoder(self, mesh: Mesh) -> TextEncoder:
        """What encodes texts with the towers."""
        return TextEncoder(self.dual_encoder, self.preparations, mesh, self.settings.evaluation.batch_size)


def build_model(settings: Settings) -> Model:
    """Finds the pretrained encoders and their tokenizers.

    Raises:
      EndxError: when one is missing, they do not match, or a length exceeds an encoder's positions.
    """
    load = _loader(settings)
    question = load(settings.model.pretrained)
    answer = load(settings.model.answer_pretrained) if settings.model.answer_pretrained else question
    sources = {"question": question, "answer": answer}
    settings = dataclasses.replace(settings, model=fill_in(settings.model, question))
    tokenizers = {side: settings.model.tokenizer or sources[side].folder for side in SIDES}
    cache = TokenCache(settings.data.cache) if settings.data.cache else None
    return _assemble(settings, sources, tokenizers, cache)


def read_model(workdir: pathlib.Path) -> Model:
    """The model of a workdir, from the description that `save_description` left there; no other folder is needed.

    It keeps no tokens: what is encoded with a finished model is new each time, and would fill the cache.
    """
    settings = read_config(workdir)
    folders = {side: workdir / MODEL / name for side, name in _description(settings).items()}
    load = _loader(settings)
    return _assemble(settings, {side: load(str(folder)) for side, folder in folders.items()}, folders, None)


def with_token_weights(model: Model, data: RetrievalSet) -> Model:
    """The model with the token weights that its settings ask for, of the questions and answers in `data`."""
    if not model.settings.model.token_weights:
        return model
    texts = {"question": data.questions, "answer": data.candidates}
    sizes = {side: source.config.vocab_size for side, source in model.sources.items()}
    return dataclasses.replace(model, token_weights=idf_of_sides(texts, model.preparations, sizes))


def save_description(workdir: pathlib.Path, model: Model) -> None:
    """Writes each encoder's `config.json` and its tokenizer's files into the workdir."""
    side_of = {name: side for side, name in _description(model.settings).items()}
    for name, side in side_of.items():
        folder = workdir / MODEL / name
        write_text(folder / "config.json", json.dumps(model.sources[side].hugging_face, indent=1) + "\n")
        model.preparations[side].tokenizer.save(folder)


def _description(settings: Settings) -> dict[str, str]:
    """Where in a workdir's model folder each side is described: in one place when both start from one encoder."""
    return {"question": "", "answer": "answer" if settings.model.answer_pretrained else ""}


def _loader(settings: Settings):
    """What reads the description of a pretrained folder: of a new encoder's, only the tokens matter."""
    return pretrained.load_tokens if settings.model.encoder else pretrained.load


def best_params(workdir: pathlib.Path, model: Model, mesh: Mesh) -> tuple[dict, int]:
    """The objective's parameters in a workdir's best checkpoint, split over the mesh as in training, and its step.

    Raises:
      EndxError: when there is no checkpoint, or it is damaged.
    """
    step = best_step(workdir, model.settings.evaluation.metric)
    if step is None:
        raise EndxError(f"{workdir} holds no checkpoint yet; train it further, or give another workdir")
    shapes = model.abstract_params()
    return restore_params(workdir, step, abstract(shapes, state_shardings(shapes, mesh))), step


def _assemble(
    settings: Settings,
    sources: Mapping[str, pretrained.PretrainedEncoder],
    tokenizers: Mapping,
    cache: TokenCache | None,
) -> Model:
    model, preparations = settings.model, {}
    prompts = {"question": model.question_prompt, "answer": model.answer_prompt}
    loaded = {folder: Tokenizer(folder) for folder in set(tokenizers.values())}
    for side, source in sources.items():
        tokenizer, config = loaded[tokenizers[side]], source.config
        tokenizer.check_matches(config.vocab_size, config.pad_id, source.folder)
        length = checked_length(settings, side, source)
        preparations[side] = Preparation(tokenizer, length, prompts[side], cache)
    return Model(settings, sources, preparations)


def checked_length(settings: Settings, side: str, source: pretrained.PretrainedEncoder) -> int:
    """The longest text of a side, in tokens.

    Raises:
      EndxError: when the encoder has fewer positions.
    """
    length, positions = getattr(settings.data, f"{side}_length"), encoder_config(settings.model, source).positions
    if positions is not None and length > positions:
        raise EndxError(f"data.{side}_length is {length}, more than the {positions} positions of {source.folder}")
    return length


def _warm_start(workdir: pathlib.Path, model: Model, mesh: Mesh) -> dict[str, np.ndarray | jax.Array]:
    """Another run's dual encoder, by path: on the host what every device holds whole."""
    _ = model.new_parameters  # raises here where it does not fit
    theirs, _ = best_params(workdir, read_model(workdir), mesh)
    found = parameter_paths(theirs["dual_encoder"])
    return {path: np.asarray(leaf) if leaf.is_fully_replicated else leaf for path, leaf in found.items()}


def _shapes(model: Model) -> dict[str, tuple[int, ...]]:
    """The shapes of a dual encoder's parameters, by path."""
    return {path: leaf.shape for path, leaf in parameter_paths(model.abstract_params()["dual_encoder"]).items()}
