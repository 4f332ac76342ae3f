"""From a config to everything that a run needs, and to its first step."""

import concurrent.futures
import dataclasses
import pathlib
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.sharding import Mesh

from endx_jax.data.batches import BatchStream, Pairs, ReadsTexts
from endx_jax.data.splits import Splits, first_pairs
from endx_jax.errors import EndxError
from endx_jax.experiment import workdir as workdirs
from endx_jax.experiment.arrangement import Arrangement, abstract_step, arrange
from endx_jax.experiment.compilation_cache import use_compilation_cache
from endx_jax.experiment.config import resolve
from endx_jax.experiment.console import say
from endx_jax.experiment.data import fingerprint, read_splits
from endx_jax.experiment.frozen import HeadEncoder
from endx_jax.experiment.model import Model, build_model, with_token_weights
from endx_jax.parallel.mesh import make_mesh
from endx_jax.parallel.sharding import place
from endx_jax.retrieval.encode import TextEncoder
from endx_jax.training.checkpoints import Checkpoints
from endx_jax.training.state import TrainState
from endx_jax.training.step import Objective, Step, compile_ahead


@dataclasses.dataclass(frozen=True)
class Run:
    """A run that is ready to begin: everything the user could have to mend has been looked at.

    Attributes:
      workdir: where everything is left.
      model: what is trained.
      data: what it is trained on, chosen by and reported on.
      data_sha256: of the training set, which a resumed run must agree on.
      mesh: the devices.
      arrangement: its batches, steps and update.
      encoder: what encodes texts for evaluation.
    """

    workdir: pathlib.Path
    model: Model
    data: Splits
    data_sha256: str
    mesh: Mesh
    arrangement: Arrangement
    encoder: TextEncoder | HeadEncoder

    @property
    def stream(self) -> BatchStream:
        """The batches; this process's rows."""
        return self.arrangement.stream

    @property
    def steps(self) -> int:
        """Of the whole run."""
        return self.arrangement.steps

    @property
    def objective(self) -> Objective:
        """As this run computes it on these devices."""
        return self.arrangement.objective


def prepare(config: Mapping, workdir: pathlib.Path) -> Run:
    """Makes everything that a run needs and writes nothing.

    Args:
      config: as for `run`.
      workdir: as for `run`.

    Raises:
      EndxError: for whatever the user can mend.
    """
    settings = resolve(config)
    workdirs.check_writable(workdir)
    use_compilation_cache(settings.train.compilation_cache)
    mesh = make_mesh(settings.mesh)
    model, data = _all_of(lambda: build_model(settings), lambda: read_splits(settings.data))
    data_sha256 = fingerprint(data.train)
    workdirs.check_agrees(workdir, model.settings, data_sha256)
    model = with_token_weights(model, data.train)
    encoder: TextEncoder | HeadEncoder = model.text_encoder(mesh)
    readers: Mapping[str, ReadsTexts] = model.preparations
    if model.trains_heads_alone:
        encoder = HeadEncoder(model, mesh)
        readers = encoder.readers
    most = settings.data.max_train_pairs
    pairs = Pairs.tokenize(first_pairs(data.train, most) if most else data.train, readers)
    if most:
        pairs = pairs.first(most)
    arrangement = arrange(model, mesh, pairs)
    return Run(workdir, model, data, data_sha256, mesh, arrangement, encoder)


def begin(run: Run, checkpoints: Checkpoints | None = None) -> tuple[TrainState, Step]:
    """The state that training begins or goes on with, and the step, compiled for the batches to come.

    Args:
      run: from `prepare`.
      checkpoints: where to go on from; None: from the initial parameters.
    """
    abstract = abstract_step(run.model, run.mesh, run.arrangement)

    def load() -> TrainState:
        start = checkpoints.latest_step if checkpoints else None
        if checkpoints and start is not None:
            say(f"resuming from the checkpoint of step {start}, of {run.steps}")
            return checkpoints.restore(start, abstract.state)
        params = place(run.model.initial_params(run.mesh), abstract.shardings.params)
        return jax.jit(abstract.create, out_shardings=abstract.shardings)(params)

    profiles = run.stream.profiles()
    started = time.perf_counter()
    if profiles:
        say(f"compiling {len(profiles)} program(s)")
    with concurrent.futures.ThreadPoolExecutor(1) as aside:  # parameters are read while the step is compiled
        compiling = aside.submit(compile_ahead, abstract.train_step, abstract.state, profiles, run.mesh)
        state = load()
        step = compiling.result()
    if profiles:
        say(f"compiled in {time.perf_counter() - started:.0f} s")
    return state, step


def _all_of(*tasks: Callable[[], Any]) -> list:
    """The results of all tasks, or one line with everything that they ask the user to mend."""
    results, mistakes = [], []
    for task in tasks:
        try:
            results.append(task())
        except EndxError as mistake:
            mistakes.append(str(mistake))
    if mistakes:
        raise EndxError("; and ".join(mistakes))
    return results
