"""Runs to plan: the batches and step of a config, without weights and possibly without data."""

import dataclasses
import os
from collections.abc import Sequence

import jax
import numpy as np

from endx_jax.data.batches.ragged import Ragged
from endx_jax.data.batches.token_store import TokenStore
from endx_jax.data.batches.token_tables import Counts, Pairs, TokenTable, VectorTable
from endx_jax.data.formats.origins import ORIGINS, name_and_split
from endx_jax.data.sources import read_splits
from endx_jax.errors import EndxError
from endx_jax.experiment.config import Settings
from endx_jax.experiment.finalize import finalize
from endx_jax.experiment.model import Model, build_model, checked_length, read_sources
from endx_jax.experiment.train_plan import TrainPlan, plan_training
from endx_jax.files import expanded
from endx_jax.models import sharding_hints
from endx_jax.models.dual_encoder import SIDES
from endx_jax.parallel.console import silenced
from endx_jax.parallel.environment import check_flags
from endx_jax.parallel.memory import DeviceMemory, measure
from endx_jax.parallel.mesh import make_mesh
from endx_jax.planning.chips import Chip
from endx_jax.pretrained.published import outline, outline_tokens
from endx_jax.pretrained.towers import embedding_width

# Pairs and steps to plan for if the training data is not here.
SOME_PAIRS, SOME_STEPS = 1000, 1000


@dataclasses.dataclass(frozen=True)
class RunPairs:
    """Training pairs of a run, or the reason for their absence.

    Attributes:
      pairs: tokenized training pairs; None if they can't be read on this machine.
      why: reason why they can't be read, for messages.
    """

    pairs: Pairs | None
    why: str = ""


def read_texts(settings: Settings) -> RunPairs:
    """Tokenizes the training pairs of a run as training does, if data and tokenizer can be read without a network."""
    path = settings.data.path
    try:
        if (name := name_and_split(path)[0]) in ORIGINS:
            from endx_jax.data.formats.reqa_dataset import is_prepared

            if not is_prepared(name):
                raise EndxError(f"{path} is not prepared here")
        model = build_model(settings)
        if model.method.frozen_towers:
            return RunPairs(None, "only heads are trained, on vectors")
        most = settings.data.max_train_pairs
        if settings.data.tokens:
            pairs = TokenStore.open(expanded(settings.data.tokens)).pairs()
        else:
            train = read_splits(settings.data).train
            pairs = (train.first(most) if most else train).tokenize(model.processors)
        return RunPairs(pairs.first(most) if most else pairs)
    except EndxError as reason:
        return RunPairs(None, str(reason))


def plan_run(
    settings: Settings, texts: RunPairs, chip: Chip | None = None, *, devices: Sequence[jax.Device] | None = None
) -> TrainPlan:
    """Plans a run as training does, but without weights, tokenizers and possibly data.

    Args:
      settings: settings of the run.
      texts: its training pairs; without them every text has the maximum length `data.*_length`.
      chip: chip that the devices represent; None for the devices as they are.
      devices: devices of the mesh; None for all.
    """
    check_flags(training=True)
    mesh = make_mesh(settings.mesh, devices)
    memory, platform = (
        (DeviceMemory(chip.memory), chip.platform) if chip else (measure(), sharding_hints.platform(mesh))
    )
    pairs = texts.pairs
    model = _outlined(settings, platform, None if pairs is None else pairs.counts)
    pairs = stand_in(model) if pairs is None else pairs
    if model.method.annotate:
        pairs = model.method.annotate(pairs, None, model.settings, mesh)
    return plan_training(model, mesh, pairs, memory, platform)


def stand_in(model: Model) -> Pairs:
    """Returns a batch of pairs whose texts all have the maximum length."""
    settings = model.settings
    size, ids = settings.train.global_batch_size, np.arange(settings.train.global_batch_size, dtype=np.int32)
    lengths = {side: checked_length(settings, side, model.sources[side]) for side in SIDES}
    tables: dict = {}
    for side, length in lengths.items():
        tokens = np.zeros(size * length, np.int32)
        tables[side] = TokenTable.from_lengths(tokens, np.full(size, length), pad_id=0)
        if model.method.frozen_towers:
            width = embedding_width(settings.model, model.sources[side])
            tables[side] = VectorTable(np.zeros((size, width), np.float32))
    negatives = max(1, settings.data.hard_negatives)

    def unknown(width: int) -> Ragged:
        return Ragged.from_array(np.zeros((size, width), np.float32))

    return Pairs(
        questions=tables["question"],
        answers=tables["answer"],
        index=np.stack([ids, ids], axis=1),
        positives=Ragged.from_array(ids[:, None]),
        hard_negatives=Ragged.from_array((ids[:, None] + 1 + np.arange(negatives, dtype=np.int32)) % size),
        groups=np.zeros(size, np.int32),
        question_length=lengths["question"],
        answer_length=lengths["answer"],
        scores=(unknown(1), unknown(negatives)),
    )


def _outlined(settings: Settings, platform: str, counts: Counts | None) -> Model:
    """Builds the model of a run without tokenizers, from published shapes if the files are missing."""
    if counts is None:
        counts = Counts(SOME_PAIRS, SOME_PAIRS, 0)
        steps = settings.train.steps or settings.optimizer.warmup_steps + SOME_STEPS
        train = dataclasses.replace(settings.train, steps=steps, epochs=0.0)
        settings = dataclasses.replace(settings, train=train, data=dataclasses.replace(settings.data, mixture=()))
    sources = read_sources(settings, readers=(outline, outline_tokens))
    weights = {side: np.zeros(source.config.vocab_size, np.float32) for side, source in sources.items()}
    chosen = weights if settings.model.token_weights else None
    with silenced():  # the same lines for each chip
        final = finalize(settings, sources, counts)
    return Model(final, sources, {}, chosen, platform)


def stay_offline() -> None:
    """Makes the hub's library read only its cache; call it before the library is imported."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
