"""From a config to everything that a run needs, and to its first step."""

import concurrent.futures
import dataclasses
import functools
import pathlib
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import optax
from jax.sharding import Mesh

from endx_jax.data.batches import BatchStream, Pairs, ReadsTexts
from endx_jax.data.pair_batches import PairStream
from endx_jax.data.splits import Splits, first_pairs
from endx_jax.errors import EndxError
from endx_jax.experiment import workdir as workdirs
from endx_jax.experiment.compilation_cache import use_compilation_cache
from endx_jax.experiment.config import resolve
from endx_jax.experiment.console import say
from endx_jax.experiment.data import fingerprint, read_splits
from endx_jax.experiment.execution import choose_execution
from endx_jax.experiment.frozen import HeadEncoder
from endx_jax.experiment.model import Model, build_model, with_token_weights
from endx_jax.objectives import PairSettings
from endx_jax.parallel.mesh import make_mesh
from endx_jax.parallel.sharding import local_rows, place, state_shardings
from endx_jax.retrieval.encode import TextEncoder
from endx_jax.training.checkpoints import Checkpoints, abstract
from endx_jax.training.optimizer import make_optimizer, make_schedule
from endx_jax.training.partition import split_frozen
from endx_jax.training.state import TrainState
from endx_jax.training.step import Objective, Step, compile_ahead, make_train_step


@dataclasses.dataclass(frozen=True)
class Run:
    """A run that is ready to begin: everything the user could have to mend has been looked at.

    Attributes:
      workdir: where everything is left.
      model: what is trained.
      data: what it is trained on, chosen by and reported on.
      data_sha256: of the training set, which a resumed run must agree on.
      mesh: the devices.
      stream: the batches; this process's rows.
      steps: of the whole run.
      objective: as this run computes it on these devices.
      optimizer: with its schedule over those steps.
      encoder: what encodes texts for evaluation.
    """

    workdir: pathlib.Path
    model: Model
    data: Splits
    data_sha256: str
    mesh: Mesh
    stream: BatchStream
    steps: int
    objective: Objective
    optimizer: optax.GradientTransformation
    encoder: TextEncoder | HeadEncoder


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
    size = settings.train.global_batch_size
    steps = settings.train.total_steps(len(pairs))
    make_stream: Callable[..., BatchStream] = BatchStream
    if isinstance(settings.objective, PairSettings):
        make_stream = functools.partial(PairStream, negatives=settings.objective.negatives)
    stream = make_stream(
        pairs,
        seed=settings.seed,
        global_batch_size=size,
        rows=local_rows(mesh, size),
        group_size=settings.data.group_size,
        hard_negatives=settings.data.hard_negatives,
        weights=(1.0, *(weight for _, weight in settings.data.mixture)),
    )
    execution = choose_execution(model, mesh, stream)
    if execution.packed:
        stream = stream.without_padding(steps, shards=execution.shards, chunks=execution.chunks(size))
    trained, _ = split_frozen(model.abstract_params(), model.frozen)
    return Run(
        workdir=workdir,
        model=model,
        data=data,
        data_sha256=data_sha256,
        mesh=mesh,
        stream=stream,
        steps=steps,
        objective=model.objective.prepare(execution, len(pairs) / size),
        optimizer=make_optimizer(settings.optimizer, steps, trained),
        encoder=encoder,
    )


def begin(run: Run, checkpoints: Checkpoints | None = None) -> tuple[TrainState, Step]:
    """The state that training begins or goes on with, and the step, compiled for the batches to come.

    Args:
      run: from `prepare`.
      checkpoints: where to go on from; None: from the initial parameters.
    """
    settings = run.model.settings
    create = functools.partial(TrainState.create, optimizer=run.optimizer, frozen=run.model.frozen)
    shapes = jax.eval_shape(create, run.model.abstract_params())
    shardings = state_shardings(shapes, run.mesh)
    train_step = make_train_step(
        run.objective,
        run.optimizer,
        make_schedule(settings.optimizer, run.steps),
        seed=settings.seed,
        shardings=shardings,
        frozen=run.model.frozen,
    )
    like = abstract(shapes, shardings)

    def load() -> TrainState:
        start = checkpoints.latest_step if checkpoints else None
        if checkpoints and start is not None:
            say(f"resuming from the checkpoint of step {start}, of {run.steps}")
            return checkpoints.restore(start, like)
        params = place(run.model.initial_params(run.mesh), shardings.params)
        return jax.jit(create, out_shardings=shardings)(params)

    profiles = run.stream.profiles()
    started = time.perf_counter()
    if profiles:
        say(f"compiling {len(profiles)} program(s)")
    with concurrent.futures.ThreadPoolExecutor(1) as aside:  # parameters are read while the step is compiled
        compiling = aside.submit(compile_ahead, train_step, like, profiles, run.mesh)
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
