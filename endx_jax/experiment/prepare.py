"""Preparation of a run: data, model, plan, initial state and compiled step."""

import concurrent.futures
import contextlib
import dataclasses
import pathlib
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.sharding import Mesh

from endx_jax.data.batches import BatchStream, Pairs, TextReader
from endx_jax.data.splits import Splits, first_pairs
from endx_jax.data.token_store import TokenStore
from endx_jax.errors import EndxError
from endx_jax.experiment import workdir as workdirs
from endx_jax.experiment.compilation_cache import use_compilation_cache
from endx_jax.experiment.config import resolve
from endx_jax.experiment.data import fingerprint, read_splits
from endx_jax.experiment.execution import rows_at_once
from endx_jax.experiment.frozen import HeadEncoder
from endx_jax.experiment.model import Model, build_model, with_token_weights
from endx_jax.experiment.tokens import stored
from endx_jax.experiment.train_plan import AbstractStep, TrainPlan, abstract_step, plan_training
from endx_jax.inference.encode import TextEncoder
from endx_jax.models.sharding_hints import platform
from endx_jax.parallel.console import say, working
from endx_jax.parallel.memory import gigabytes, measure, trim
from endx_jax.parallel.mesh import make_mesh
from endx_jax.parallel.sharding import place
from endx_jax.training.checkpoints import Checkpoints
from endx_jax.training.state import TrainState
from endx_jax.training.step import CompiledStep, Step, compile_ahead


@dataclasses.dataclass(frozen=True)
class Run:
    """A prepared run, whose settings, data and files have been checked.

    Attributes:
      workdir: the run's folder.
      model: model to train.
      data: train, validation and test sets.
      data_sha256: sha256 of the training set, which must not change when the run resumes.
      mesh: device mesh.
      train_plan: batches, steps and optimizer.
      encoder: text encoder for evaluation.
    """

    workdir: pathlib.Path
    model: Model
    data: Splits
    data_sha256: str
    mesh: Mesh
    train_plan: TrainPlan
    encoder: TextEncoder | HeadEncoder

    @property
    def stream(self) -> BatchStream:
        """Batches with this process's rows."""
        return self.train_plan.stream

    @property
    def steps(self) -> int:
        """Number of steps of the whole run."""
        return self.train_plan.steps


def prepare_run(config: Mapping, workdir: pathlib.Path) -> Run:
    """Reads and checks everything that a run needs; writes nothing.

    Args:
      config: config tree, as `methods.config.base_config` returns it.
      workdir: the run's folder.

    Raises:
      EndxError: settings, data, model or workdir are invalid.
    """
    settings = resolve(config)
    workdirs.check_writable(workdir)
    use_compilation_cache(settings.train.compilation_cache)
    mesh = make_mesh(settings.mesh)
    model, data = _all_of(lambda: build_model(settings), lambda: read_splits(settings.data))
    if settings.data.tokens:
        data = dataclasses.replace(data, train=stored(settings.data, model.processors, data))
    most, records = settings.data.max_train_pairs, data.train
    count = len(records.pairs() if isinstance(records, TokenStore) else records.pairs)
    # Not the settings above: the model's are completed from the pretrained folder.
    settings = dataclasses.replace(model.settings, train=settings.train.sized(min(count, most or count)))
    model = dataclasses.replace(model, settings=settings)
    data_sha256 = fingerprint(data.train)
    workdirs.check_agrees(workdir, model.settings, data_sha256)
    model = dataclasses.replace(with_token_weights(model, data.train), platform=platform(mesh))
    encoder: TextEncoder | HeadEncoder = model.text_encoder(mesh)
    readers: Mapping[str, TextReader] = model.processors
    if model.method.frozen_towers:
        _ = data.train.questions[0]  # raises EndxError for a store, which has no texts
        encoder = HeadEncoder(model, mesh)
        readers = encoder.readers
    if isinstance(records, TokenStore):
        pairs = records.pairs()
    else:
        records = first_pairs(records, most) if most else records
        pairs = Pairs.tokenize(records, readers)
    if model.method.annotate:
        pairs = model.method.annotate(pairs, records, settings, mesh)
    if most:
        pairs = pairs.first(most)
    train_plan = plan_training(model, mesh, pairs, measure())
    return Run(workdir, model, data, data_sha256, mesh, train_plan, encoder)


def begin(run: Run, checkpoints: Checkpoints | None = None) -> tuple[Run, TrainState, Step]:
    """Compiles the step, and creates or restores the state.

    If the compiled step needs more memory than planned and `train.tower_chunk` is -1, the chunks are halved and the
    step is compiled once more.

    Args:
      run: run of `prepare_run`.
      checkpoints: checkpoints to resume from; None to start from the initial parameters.

    Returns:
      (run, state, step): the run with the batches of the compiled step, the state, and the step.

    Raises:
      EndxError: the step needs more memory than is free.
    """
    expected, memory = run.train_plan.expected_peak(run.model), run.train_plan.memory
    _check_fits(run, expected)
    say(f"memory: expected peak {gigabytes(expected)} of {gigabytes(memory.total)} free")
    abstract = abstract_step(run.model, run.mesh, run.train_plan)

    def load() -> TrainState:
        start = checkpoints.latest_step if checkpoints else None
        if checkpoints and start is not None:
            say(f"resuming from the checkpoint of step {start} of {run.steps}")
            return checkpoints.restore(start, abstract.state)
        params = place(run.model.initial_params(), abstract.shardings.params)
        return jax.jit(abstract.create, out_shardings=abstract.shardings)(params)

    with concurrent.futures.ThreadPoolExecutor(1) as thread:  # parameters are read while the step is compiled
        compiling = thread.submit(_compile, run, abstract)
        state = load()
        step = compiling.result()
    state_bytes = run.train_plan.state
    exceeds = step.bytes() - state_bytes > memory.activations(state_bytes)
    smaller = _with_half_the_chunk(run) if exceeds else None
    if smaller:
        say(f"memory: the compiled step needs {gigabytes(memory.peak(step.bytes()))}; compiling it with smaller chunks")
        run = smaller
        step = _compile(run, abstract_step(run.model, run.mesh, run.train_plan))
    trim()
    _check_fits(run, memory.peak(step.bytes()))
    return run, state, step


def _compile(run: Run, abstract: AbstractStep) -> CompiledStep:
    profiles = run.stream.profiles()
    started = time.perf_counter()
    programs = f"{len(profiles)} program{'s' if len(profiles) > 1 else ''}"
    cached = " (cached for later runs)" if run.model.settings.train.compilation_cache else ""
    progress = working(f"compiling {programs} for the training step{cached}") if profiles else contextlib.nullcontext()
    with progress:
        step = compile_ahead(abstract.train_step, abstract.state, profiles, run.mesh)
    if profiles:
        say(f"compiled in {time.perf_counter() - started:.0f} s")
    return step


def _with_half_the_chunk(run: Run) -> Run | None:
    """Returns the run with chunks of half as many rows; None if `train.tower_chunk` is set or chunks have one row."""
    train = run.model.settings.train
    rows = rows_at_once(run.train_plan.execution, train.global_batch_size)
    if train.tower_chunk >= 0 or rows == 1:
        return None
    settings = dataclasses.replace(run.model.settings, train=dataclasses.replace(train, tower_chunk=rows // 2))
    model = dataclasses.replace(run.model, settings=settings)
    train_plan = plan_training(model, run.mesh, run.stream.pairs, run.train_plan.memory)
    return dataclasses.replace(run, train_plan=train_plan)


def _check_fits(run: Run, peak: int) -> None:
    """Raises EndxError if the step does not fit into memory, before the system kills the process."""
    memory = run.train_plan.memory
    if peak > memory.total:
        rows = rows_at_once(run.train_plan.execution, run.model.settings.train.global_batch_size)
        smaller = f"--config.train.tower_chunk below {rows}, " if rows > 1 else ""
        raise EndxError(
            f"a step needs {gigabytes(peak)} of memory and {gigabytes(memory.total)} are free: end other programs, or "
            f"set {smaller}a smaller --config.data.answer_length or a smaller --config.model.pretrained"
        )


def _all_of(*tasks: Callable[[], Any]) -> list:
    """Returns the results of all tasks; raises one EndxError with the messages of all that failed."""
    results, messages = [], []
    for task in tasks:
        try:
            results.append(task())
        except EndxError as failure:
            messages.append(str(failure))
    if messages:
        raise EndxError("; and ".join(messages))
    return results
