"""Training and evaluation of a run in its workdir."""

import pathlib
import time
from collections.abc import Callable, Mapping

from endx_jax import json_files
from endx_jax.data.batches import Pairs
from endx_jax.data.records import Pools
from endx_jax.data.splits import with_many_questions
from endx_jax.experiment import workdir as workdirs
from endx_jax.experiment.config import resolve
from endx_jax.experiment.data import pools
from endx_jax.experiment.index_results import write_pool
from endx_jax.experiment.model import best_params, save_description, save_towers
from endx_jax.experiment.prepare import Run, begin, prepare
from endx_jax.experiment.summary import log_summary
from endx_jax.experiment.workdir import RunLock
from endx_jax.files import reporting_full_disk
from endx_jax.inference.saved import ABOUT, MODEL
from endx_jax.methods.evaluation import Evaluator
from endx_jax.parallel.console import say
from endx_jax.parallel.distributed import all_processes, barrier, on_primary
from endx_jax.parallel.sharding import place, state_shardings
from endx_jax.retrieval.results import Results
from endx_jax.retrieval.shards import MANIFEST, metric_of
from endx_jax.training.checkpoints import Checkpoints, best_step
from endx_jax.training.loop import fit
from endx_jax.training.metric_writers import check_installed
from endx_jax.training.monitor import Monitor
from endx_jax.training.preemption import Preemption
from endx_jax.training.trace import Trace


def run(config: Mapping, workdir: pathlib.Path) -> Results | None:
    """Trains and evaluates a model; resumes the run in the workdir if there is one.

    Args:
      config: config tree, as `methods.config.base_config` returns it.
      workdir: the run's folder; the README lists its files.

    Returns:
      The final results; None if the run stopped at `train.stop_at_step`, or if the workdir already holds this run,
      trained and evaluated.

    Raises:
      EndxError: settings or data are invalid, another run uses the workdir, or the disk is full.
      RunInterrupted: the process received SIGTERM and saved a checkpoint: see `training.preemption`.
    """
    began = time.perf_counter()
    check_installed(resolve(config).train.wandb_project)
    with Preemption() as preemption, reporting_full_disk(workdir), RunLock(workdir):
        return _run(config, workdir, preemption, began)


def _run(config: Mapping, workdir: pathlib.Path, preemption: Preemption, began: float) -> Results | None:
    prepared = prepare(config, workdir)
    evaluator = prepared.model.method.evaluator(
        prepared.objective, prepared.encoder, prepared.mesh, prepared.model.settings.evaluation
    )
    if all_processes(_is_finished(prepared)):
        say(f"{workdir} holds this run, trained and evaluated: nothing to do; its results are in {workdirs.RESULTS}")
        return None
    log_summary(prepared.model, prepared.mesh, prepared.steps, _question_counts(prepared), prepared.stream.plan)
    on_primary(lambda: _describe(prepared), "workdir-described")
    reached = _train(prepared, evaluator, preemption, began)
    params, step = best_params(prepared.workdir, prepared.model, prepared.mesh)
    if prepared.model.method.embeds:
        save_towers(prepared.workdir, prepared.model, params["dual_encoder"], prepared.mesh)
    if reached < prepared.steps:
        say(f"stopped at step {reached} of {prepared.steps}; run the same command without train.stop_at_step to resume")
        return None
    return _report(prepared, evaluator, params, step)


def _is_finished(run: Run) -> bool:
    """Returns true if the workdir holds the complete output of this run with the same settings."""
    needed = [run.workdir / workdirs.CONFIG, run.workdir / workdirs.RESULTS]
    if run.model.method.embeds:
        needed += [run.workdir / workdirs.INDEX / MANIFEST, run.workdir / MODEL / ABOUT]
    return (
        all(file.is_file() for file in needed)
        and json_files.read(needed[0]) == run.model.settings.as_dict()
        and best_step(run.workdir, run.model.settings.evaluation.metric) is not None
    )


def _train(run: Run, evaluator: Evaluator, preemption: Preemption, began: float) -> int:
    """Trains to the last step or to `train.stop_at_step`; returns the step reached."""
    settings = run.model.settings
    checkpoints = Checkpoints(
        run.workdir, keep=settings.train.keep_checkpoints, metric=settings.evaluation.metric, report=say
    )
    run, state, train_step = begin(run, checkpoints)
    barrier("compiled")
    start = int(state.step)
    trace = Trace(
        run.workdir / workdirs.PROFILE,
        start=start,
        steps=settings.train.profile_steps,
        request=run.workdir / workdirs.PROFILE_NOW,
    )
    monitor = Monitor(
        run.workdir,
        start=start,
        steps=run.steps,
        global_batch_size=settings.train.global_batch_size,
        log_every=settings.train.log_every,
        example_names=lambda step: _question_ids(run, step),
        began=began,
        warnings=run.model.method.warnings,
        wandb_project=settings.train.wandb_project,
    )
    try:
        with preemption.deferred():
            state = fit(
                state,
                train_step,
                run.stream,
                settings.train,
                steps=run.steps,
                mesh=run.mesh,
                checkpoints=checkpoints,
                monitor=monitor,
                validate=_validation(run, evaluator) if run.data.validation.questions else None,
                trace=trace,
                preemption=preemption,
                reading_threads=settings.data.reading_threads,
            )
    finally:
        trace.close()
        monitor.close()
    # Not called after a failure, when other processes may be waiting for this one. A single process still finishes its
    # writes before it exits.
    checkpoints.close()
    return int(state.step)


def _validation(run: Run, evaluator: Evaluator) -> Callable[[dict], dict[str, float]]:
    """Returns a function from parameters to their measures on the validation split."""
    records = pools(run.data.validation, run.model.settings.data).primary
    selected = Pools(validation=evaluator.select(records))
    return lambda params: evaluator.evaluate(params, selected)["validation"].metrics


def _report(run: Run, evaluator: Evaluator, params: dict, step: int) -> Results:
    """Evaluates the parameters of a step on the test set; writes and prints the results."""
    settings, method = run.model.settings, run.model.method
    whole = pools(run.data.test, settings.data)
    shared = with_many_questions(whole.primary, settings.evaluation.min_questions)
    test = Pools({name: evaluator.select(records) for name, records in (whole | shared).items()})
    primary = test.primary
    say(f"evaluating {len(primary.questions):,} held-out questions against {len(primary.candidates):,} candidates")
    results = Results(dataset=settings.data.test_path or settings.data.path, split="test", pools=test)
    if settings.evaluation.reverse:
        results.rank_both_ways()
    results.add_bm25()

    def initial() -> dict:
        return place(run.model.initial_params(), state_shardings(run.model.abstract_params(), run.mesh))

    embeddings = evaluator.report(results, params, initial if settings.evaluation.untrained else None)
    if method.section:
        held_out = run.data.validation if run.data.validation.questions else run.data.test
        pairs = Pairs.tokenize(held_out, run.model.processors)
        section = method.section(run.objective, params, pairs, run.mesh, batch_size=settings.evaluation.batch_size)
        results.sections += [section] if section else []
    identity = "" if embeddings is None else run.encoder.identity(params["dual_encoder"])

    def write() -> None:
        if embeddings is not None:
            write_pool(
                run.workdir / workdirs.INDEX,
                embeddings,
                primary.documents,
                metric=metric_of(cosine=settings.model.normalize),
                model={"name": str(run.workdir), "identity": identity, "step": step},
            )
        results.write(run.workdir / workdirs.RESULTS, run.workdir / workdirs.EVALUATION / "test")

    on_primary(write, "results-written")
    chosen = "the best on the validation split" if run.data.validation.questions else "the last"
    say(f"\n{results.tables()}\n\n`trained` is the checkpoint of step {step}, {chosen}.")
    return results


def _question_ids(run: Run, step: int) -> list[str]:
    """Returns the ids of the questions in the batch of `step`, counted from 1."""
    rows = run.stream.pairs.index[run.stream.example_ids(step - 1), 0]
    return [run.data.train.question_ids[row] for row in rows]


def _describe(run: Run) -> None:
    """Writes settings, hash of the data and description of the model; removes the results of an earlier run."""
    (run.workdir / workdirs.RESULTS).unlink(missing_ok=True)
    about_data = {"sha256": run.data_sha256, "questions": _question_counts(run)}
    workdirs.write_config(run.workdir, run.model.settings, about_data)
    save_description(run.workdir, run.model)


def _question_counts(run: Run) -> dict[str, int]:
    return {name: len(getattr(run.data, name).questions) for name in ("train", "validation", "test")}
