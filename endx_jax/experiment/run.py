"""The main job: train, evaluate, and leave everything in a workdir."""

import math
import os
import pathlib
from collections.abc import Mapping

import jax
from jax.sharding import Mesh

from endx_jax.data.batches import BatchStream, Pairs
from endx_jax.data.records import RetrievalSet
from endx_jax.data.splits import Splits
from endx_jax.experiment import workdir as workdirs
from endx_jax.experiment.config import resolve
from endx_jax.experiment.console import say, showing_progress
from endx_jax.experiment.data import fingerprint, read_splits
from endx_jax.experiment.model import Model, best_params, build_model, save_description
from endx_jax.experiment.results import Results
from endx_jax.parallel.distributed import on_primary
from endx_jax.parallel.mesh import make_mesh
from endx_jax.parallel.sharding import local_rows, place, state_shardings
from endx_jax.retrieval.encode import TextEncoder
from endx_jax.retrieval.index import write_index
from endx_jax.retrieval.systems import DenseResult, evaluate_bm25, evaluate_dense
from endx_jax.training.checkpoints import Checkpoints, abstract
from endx_jax.training.loop import fit
from endx_jax.training.monitor import Monitor
from endx_jax.training.optimizer import make_optimizer, make_schedule
from endx_jax.training.state import TrainState
from endx_jax.training.step import make_train_step


def run(config: Mapping, workdir: pathlib.Path) -> Results | None:
    """Trains what `config` describes, going on where an earlier run in the workdir stopped, and evaluates it.

    Args:
      config: a tree as `recipes.base.get_config` makes it.
      workdir: where everything is left; the README lists what.

    Returns:
      The final results; None when the run was told to stop before its last step.

    Raises:
      EndxError: for whatever the user can mend.
    """
    settings = resolve(config)
    on_primary(lambda: workdirs.make_writable(workdir), "workdir-made")
    _use_compilation_cache(settings.train.compilation_cache)
    mesh = make_mesh(settings.mesh)
    model = build_model(settings)
    data = read_splits(settings.data)
    sha256 = fingerprint(data.train)
    workdirs.check_agrees(workdir, model.settings, sha256)
    steps = settings.train.total_steps(len(data.train.pairs))
    _introduce(model, data, mesh, steps)
    on_primary(lambda: _describe(workdir, model, data, sha256), "workdir-described")

    encoder = model.text_encoder(mesh)
    reached = _train(model, data, mesh, workdir, steps, encoder)
    if reached < steps:
        say(f"stopped at step {reached} of {steps}, as asked; without train.stop_at_step the same command goes on")
        return None
    return _report(model, data, mesh, workdir, encoder)


def _train(model: Model, data: Splits, mesh: Mesh, workdir: pathlib.Path, steps: int, encoder: TextEncoder) -> int:
    """Trains to the end or to where the config says to stop; returns the step reached."""
    settings, size = model.settings, model.settings.train.global_batch_size
    rows = local_rows(mesh, size)
    stream = BatchStream(_pairs(model, data.train), seed=settings.seed, global_batch_size=size, rows=rows)
    optimizer = make_optimizer(settings.optimizer, steps, model.abstract_params())
    shapes = jax.eval_shape(lambda params: TrainState.create(params, optimizer), model.abstract_params())
    shardings = state_shardings(shapes, mesh)

    checkpoints = Checkpoints(
        workdir, keep=settings.train.keep_checkpoints, metric=settings.evaluation.metric, report=say
    )
    start = checkpoints.latest_step
    if start is None:
        params = place(model.initial_params(mesh), shardings.params)
        state = jax.jit(TrainState.create, static_argnums=1, out_shardings=shardings)(params, optimizer)
    else:
        state = checkpoints.restore(start, abstract(shapes, shardings))
        say(f"resuming from the checkpoint of step {start}, of {steps}")

    schedule = make_schedule(settings.optimizer, steps)
    train_step = make_train_step(model.objective, optimizer, schedule, seed=settings.seed, shardings=shardings)
    monitor = Monitor(
        workdir,
        start=start or 0,
        steps=steps,
        global_batch_size=size,
        log_every=settings.train.log_every,
        example_names=lambda step: _question_ids(data.train, stream, step),
    )
    try:
        state = fit(
            state,
            train_step,
            stream,
            settings.train,
            steps=steps,
            mesh=mesh,
            checkpoints=checkpoints,
            monitor=monitor,
            validate=_validator(encoder, data.validation),
            reading_threads=settings.data.reading_threads,
        )
    finally:
        monitor.close()
        checkpoints.close()
    return int(state.step)


def _report(model: Model, data: Splits, mesh: Mesh, workdir: pathlib.Path, encoder: TextEncoder) -> Results:
    """Evaluates BM25 and the towers before and after training on the test split; writes and prints the results."""
    depth, name = model.settings.evaluation.depth, model.settings.data.test_path or model.settings.data.path
    test = data.test
    say(f"evaluating {len(test.questions):,} held-out questions against {len(test.candidates):,} candidates")
    results = Results(dataset=name, split="test", records=test)
    results.evaluations["bm25"] = evaluate_bm25(test, depth=depth)

    def evaluate(params: dict) -> DenseResult:
        def encode(side, texts):
            return encoder(params["dual_encoder"], side, texts, progress=showing_progress())

        return evaluate_dense(encode, test, depth=depth)

    shardings = state_shardings(model.abstract_params(), mesh)
    results.evaluations["untrained"] = evaluate(place(model.initial_params(mesh), shardings)).evaluation
    params, step = best_params(workdir, model, mesh)
    trained = evaluate(params)
    results.evaluations["trained"] = trained.evaluation

    def write() -> None:
        identity = {"workdir": workdir.name, "step": step}
        index = workdir / workdirs.INDEX
        write_index(index, trained.candidates, test.candidate_ids, test.candidates, model=identity)
        results.write(workdir / workdirs.RESULTS, workdir / workdirs.EVALUATION / "test")

    on_primary(write, "results-written")
    say(f"\n{results.table()}\ntrained: the checkpoint of step {step}, best on the validation split\n")
    return results


def _validator(encoder: TextEncoder, validation: RetrievalSet):
    """Parameters to validation metrics; None where nothing is held out for validation."""
    if not validation.questions:
        return None

    def validate(params: dict) -> dict[str, float]:
        dense = evaluate_dense(lambda side, texts: encoder(params["dual_encoder"], side, texts), validation)
        return dense.evaluation.metrics

    return validate


def _pairs(model: Model, train: RetrievalSet) -> Pairs:
    pairs = Pairs.tokenize(train, model.tokenizer, model.settings.data)
    limit = model.settings.data.max_train_pairs
    return pairs.first(limit) if limit else pairs


def _question_ids(train: RetrievalSet, stream: BatchStream, step: int) -> list[str]:
    """The questions of the batch that led to `step`."""
    rows = stream.pairs.index[stream.example_ids(step - 1), 0]
    return [train.question_ids[row] for row in rows]


def _introduce(model: Model, data: Splits, mesh: Mesh, steps: int) -> None:
    """Says what is about to happen, in four lines."""
    settings, devices = model.settings, mesh.devices.ravel()
    count = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(model.abstract_params()))
    parts = ", ".join(f"{len(getattr(data, name).questions):,} {name}" for name in ("train", "validation", "test"))
    say(f"data: {settings.data.path}, questions: {parts}")
    say(f"model: {settings.model.pretrained}, {count:,} parameters, {settings.model.pooling} pooling")
    say(f"devices: {len(devices)} x {devices[0].device_kind} in {jax.process_count()} process(es)")
    say(f"training: {steps} steps of {settings.train.global_batch_size} pairs")


def _describe(workdir: pathlib.Path, model: Model, data: Splits, sha256: str) -> None:
    counts = {name: len(getattr(data, name).questions) for name in ("train", "validation", "test")}
    workdirs.write_config(workdir, model.settings, {"sha256": sha256, "questions": counts})
    save_description(workdir, model)


def _use_compilation_cache(folder: str) -> None:
    if folder:
        jax.config.update("jax_compilation_cache_dir", os.path.expanduser(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 1.0)
