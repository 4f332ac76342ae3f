"""The main job: train, evaluate, and leave everything in a workdir."""

import pathlib
from collections.abc import Mapping

from endx_jax.data.batches import Pairs
from endx_jax.data.records import RetrievalSet
from endx_jax.experiment import workdir as workdirs
from endx_jax.experiment.console import say, showing_progress
from endx_jax.experiment.data import pools
from endx_jax.experiment.introduction import introduce
from endx_jax.experiment.model import best_params, save_description
from endx_jax.experiment.prepare import Run, begin, prepare
from endx_jax.experiment.results import Results
from endx_jax.experiment.teacher import compare_teacher
from endx_jax.objectives import EndxObjective
from endx_jax.parallel.distributed import on_primary
from endx_jax.parallel.sharding import place, state_shardings
from endx_jax.retrieval.encode import TextEncoder
from endx_jax.retrieval.index import write_index
from endx_jax.retrieval.shards import metric_of
from endx_jax.retrieval.systems import DenseResult, evaluate_bm25, evaluate_dense
from endx_jax.training.checkpoints import Checkpoints
from endx_jax.training.loop import fit
from endx_jax.training.monitor import Monitor
from endx_jax.training.trace import Trace


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
    prepared = prepare(config, workdir)
    introduce(prepared.model, prepared.mesh, prepared.steps, _question_counts(prepared), prepared.stream.plan)
    on_primary(lambda: _describe(prepared), "workdir-described")
    reached = _train(prepared)
    if reached < prepared.steps:
        say(f"stopped at step {reached} of {prepared.steps}; without train.stop_at_step the same command goes on")
        return None
    return _report(prepared)


def _train(run: Run) -> int:
    """Trains to the end or to where the config says to stop; returns the step reached."""
    settings = run.model.settings
    checkpoints = Checkpoints(
        run.workdir, keep=settings.train.keep_checkpoints, metric=settings.evaluation.metric, report=say
    )
    state, train_step = begin(run, checkpoints)
    start = int(state.step)
    trace = Trace(run.workdir / workdirs.PROFILE, start=start, steps=settings.train.profile_steps)
    monitor = Monitor(
        run.workdir,
        start=start,
        steps=run.steps,
        global_batch_size=settings.train.global_batch_size,
        log_every=settings.train.log_every,
        example_names=lambda step: _question_ids(run, step),
    )
    try:
        state = fit(
            state,
            train_step,
            run.stream,
            settings.train,
            steps=run.steps,
            mesh=run.mesh,
            checkpoints=checkpoints,
            monitor=monitor,
            validate=_validator(run.encoder, next(iter(pools(run.data.validation, settings.data).values()))),
            trace=trace,
            reading_threads=settings.data.reading_threads,
        )
    finally:
        trace.close()
        monitor.close()
        checkpoints.close()
    return int(state.step)


def _report(run: Run) -> Results:
    """Evaluates BM25 and the towers before and after training on the test split; writes and prints the results."""
    settings, test = run.model.settings, pools(run.data.test, run.model.settings.data)
    primary = next(iter(test.values()))
    say(f"evaluating {len(primary.questions):,} held-out questions against {len(primary.candidates):,} candidates")
    results = Results(dataset=settings.data.test_path or settings.data.path, split="test", pools=test)
    depth = settings.evaluation.depth
    results.add("bm25", evaluate_bm25(test, depth=depth))

    def evaluate(params: dict) -> DenseResult:
        def encode(side, texts):
            return run.encoder(params["dual_encoder"], side, texts, progress=showing_progress())

        return evaluate_dense(encode, test, depth=depth)

    shardings = state_shardings(run.model.abstract_params(), run.mesh)
    results.add_dense("untrained", evaluate(place(run.model.initial_params(run.mesh), shardings)))
    params, step = best_params(run.workdir, run.model, run.mesh)
    trained = evaluate(params)
    results.add_dense("trained", trained)
    results.held_out_pairs = _compare_teacher(run, params)
    identity = run.encoder.identity(params["dual_encoder"])

    def write() -> None:
        write_index(
            run.workdir / workdirs.INDEX,
            trained.candidates,
            primary.documents,
            metric=metric_of(cosine=settings.model.normalize),
            model={"name": str(run.workdir), "identity": identity, "step": step},
        )
        results.write(run.workdir / workdirs.RESULTS, run.workdir / workdirs.EVALUATION / "test")

    on_primary(write, "results-written")
    chosen = "the best on the validation split" if run.data.validation.questions else "the last"
    say(f"\n{results.tables()}\n\n`trained` is the checkpoint of step {step}, {chosen}.")
    return results


def _compare_teacher(run: Run, params: dict) -> dict[str, dict[str, float]]:
    """How well teacher and student find held-out pairs; empty for methods without a teacher."""
    if not isinstance(run.objective, EndxObjective):
        return {}
    held_out = run.data.validation if run.data.validation.questions else run.data.test
    pairs = Pairs.tokenize(held_out, run.model.preparations)
    size = run.model.settings.evaluation.batch_size
    return compare_teacher(run.objective, params, pairs, run.mesh, batch_size=size)


def _validator(encoder: TextEncoder, validation: RetrievalSet):
    """Parameters to validation metrics; None where nothing is held out for validation."""
    if not validation.questions:
        return None

    def validate(params: dict) -> dict[str, float]:
        pool = {"validation": validation}
        dense = evaluate_dense(lambda side, texts: encoder(params["dual_encoder"], side, texts), pool)
        return dense.evaluations["validation"].metrics

    return validate


def _question_ids(run: Run, step: int) -> list[str]:
    """The questions of the batch that led to `step`."""
    rows = run.stream.pairs.index[run.stream.example_ids(step - 1), 0]
    return [run.data.train.question_ids[row] for row in rows]


def _describe(run: Run) -> None:
    """Writes what the run is made from into the workdir."""
    about_data = {"sha256": run.data_sha256, "questions": _question_counts(run)}
    workdirs.write_config(run.workdir, run.model.settings, about_data)
    save_description(run.workdir, run.model)


def _question_counts(run: Run) -> dict[str, int]:
    return {name: len(getattr(run.data, name).questions) for name in ("train", "validation", "test")}
