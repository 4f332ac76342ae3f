"""The main job: train, evaluate, and leave everything in a workdir."""

import pathlib
from collections.abc import Mapping
from typing import Protocol

from endx_jax.data.records import RetrievalSet
from endx_jax.data.subsets import with_many_questions
from endx_jax.experiment import workdir as workdirs
from endx_jax.experiment.config import resolve
from endx_jax.experiment.console import say
from endx_jax.experiment.data import pools
from endx_jax.experiment.introduction import introduce
from endx_jax.experiment.lock import RunLock
from endx_jax.experiment.model import save_description
from endx_jax.experiment.pairs import judge_pairs
from endx_jax.experiment.prepare import Run, begin, prepare
from endx_jax.experiment.ranking import EmbeddingJudge
from endx_jax.experiment.results import Results
from endx_jax.files import reporting_full_disk
from endx_jax.objectives import PairSettings
from endx_jax.parallel.distributed import barrier, on_primary
from endx_jax.parallel.heartbeats import Heartbeats
from endx_jax.training.checkpoints import Checkpoints
from endx_jax.training.loop import fit
from endx_jax.training.monitor import Monitor
from endx_jax.training.preemption import Preemption
from endx_jax.training.trace import Trace
from endx_jax.training.wandb_log import check_installed


def run(config: Mapping, workdir: pathlib.Path) -> Results | None:
    """Trains what `config` describes, going on where an earlier run in the workdir stopped, and evaluates it.

    Args:
      config: a tree as `recipes.base.get_config` makes it.
      workdir: where everything is left; the README lists what.

    Returns:
      The final results; None when the config told the run to stop before its last step.

    Raises:
      EndxError: for whatever the user can mend, another run in the workdir and a full disk among it.
      RunInterrupted: told to stop by SIGTERM, it saved where it was; see `training.preemption`.
    """
    settings = resolve(config).train
    check_installed(settings.wandb_project)
    with (
        Preemption() as preemption,
        reporting_full_disk(workdir),
        RunLock(workdir),
        Heartbeats(workdir, peer_timeout=settings.peer_timeout) as heartbeats,
    ):
        return _run(config, workdir, preemption, heartbeats)


def _run(config: Mapping, workdir: pathlib.Path, preemption: Preemption, heartbeats: Heartbeats) -> Results | None:
    prepared = prepare(config, workdir)
    judge = judge_of(prepared)
    introduce(prepared.model, prepared.mesh, prepared.steps, _question_counts(prepared), prepared.stream.plan)
    on_primary(lambda: _describe(prepared), "workdir-described")
    reached = _train(prepared, judge, preemption, heartbeats)
    if reached < prepared.steps:
        say(f"stopped at step {reached} of {prepared.steps}; without train.stop_at_step the same command goes on")
        return None
    heartbeats.phase = "evaluating"
    return _report(prepared, judge)


class Judge(Protocol):
    """Says how good parameters are."""

    def asked(self, records: RetrievalSet) -> RetrievalSet:
        """A set with those of its questions that are ranked."""

    def validate(self, params: dict) -> dict[str, float]:
        """The measures of parameters on the validation split."""

    def report(self, results: Results) -> int:
        """Adds every system to the results, of the test split; returns the step of the checkpoint that was taken."""


def judge_of(prepared: Run) -> Judge:
    """What judges a run: most methods rank by embeddings."""
    if isinstance(prepared.model.settings.objective, PairSettings):
        return judge_pairs(prepared)
    return EmbeddingJudge(prepared)


def _train(run: Run, judge: Judge, preemption: Preemption, heartbeats: Heartbeats) -> int:
    """Trains to the end or to where the config says to stop; returns the step reached."""
    settings = run.model.settings
    checkpoints = Checkpoints(
        run.workdir, keep=settings.train.keep_checkpoints, metric=settings.evaluation.metric, report=say
    )
    heartbeats.phase = "compiling"
    state, train_step = begin(run, checkpoints)
    barrier("compiled")
    heartbeats.phase = "starting"
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
        heartbeats=heartbeats,
        wandb_project=settings.train.wandb_project,
    )
    try:
        with preemption.put_off():
            state = fit(
                state,
                train_step,
                run.stream,
                settings.train,
                steps=run.steps,
                mesh=run.mesh,
                checkpoints=checkpoints,
                monitor=monitor,
                validate=judge.validate if run.data.validation.questions else None,
                trace=trace,
                preemption=preemption,
                reading_threads=settings.data.reading_threads,
            )
    finally:
        trace.close()
        monitor.close()
    # Not after a failure: others may wait for this process while it would wait for them. Alone, it finishes what it
    # is writing before it ends.
    checkpoints.close()
    return int(state.step)


def _report(run: Run, judge: Judge) -> Results:
    """Evaluates on the test split; writes and prints the results."""
    settings = run.model.settings
    whole = pools(run.data.test, settings.data)
    shared = with_many_questions(next(iter(whole.values())), settings.evaluation.min_questions)
    test = {name: judge.asked(records) for name, records in (whole | shared).items()}
    primary = next(iter(test.values()))
    say(f"evaluating {len(primary.questions):,} held-out questions against {len(primary.candidates):,} candidates")
    results = Results(dataset=settings.data.test_path or settings.data.path, split="test", pools=test)
    step = judge.report(results)

    def write() -> None:
        results.write(run.workdir / workdirs.RESULTS, run.workdir / workdirs.EVALUATION / "test")

    on_primary(write, "results-written")
    chosen = "the best on the validation split" if run.data.validation.questions else "the last"
    say(f"\n{results.tables()}\n\n`trained` is the checkpoint of step {step}, {chosen}.")
    return results


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
