"""A run from its config to its results, in the order of `run`, which `endx_jax.train` calls for pairs in memory.

1. `prepare.prepare_run` reads and checks settings, data and model, tokenizes the pairs and plans the batches.
2. `_train` compiles the step and resumes from a checkpoint if there is one (`prepare.compile_and_restore`), and calls
   `loop.fit`.
3. The towers of the best checkpoint and the fusion with BM25 become the model folder, which `endx_jax.load` reads.
4. `_report` ranks the test set with BM25 and with the towers before and after training, and indexes the answers.
"""

import contextlib
import functools
import operator
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax

from endx_jax.batch import Batch
from endx_jax.buckets import read_bytes, remove, url_of, write_bytes
from endx_jax.data.sets.records import Pools, RetrievalSet
from endx_jax.data.sets.splits import with_many_questions
from endx_jax.errors import EndxError, RunInterrupted, nearest
from endx_jax.experiment import model_card
from endx_jax.experiment import workdir as workdirs
from endx_jax.experiment.config import agree_on_length, resolve
from endx_jax.experiment.data import ensure_prepared, pools, read_sets, rows_of
from endx_jax.experiment.model import best_params, save_adapters, save_description, save_towers
from endx_jax.experiment.prepare import Run, compile_and_restore, log_summary, prepare_run
from endx_jax.experiment.run_index import fit_hybrid, searched_answers, with_known, write_pool
from endx_jax.experiment.workdir import Workdir, opened
from endx_jax.files import expanded, reporting_full_disk
from endx_jax.index.index_file import metric_of
from endx_jax.inference import EmbeddingModel, load
from endx_jax.inference.manifest import MANIFEST, MODEL
from endx_jax.methods.config import load_config, names_of
from endx_jax.methods.evaluation import UNTRAINED, Evaluator, add_validation, validation, warn_of_losses
from endx_jax.models.dual_encoder import SIDES
from endx_jax.parallel.agreement import broadcast, check_equal, check_parameters, on_primary
from endx_jax.parallel.console import gathering, say, silenced
from endx_jax.parallel.environment import environment
from endx_jax.parallel.sharding import put, state_shardings, to_global
from endx_jax.ranking.hybrid import Hybrid
from endx_jax.ranking.results import Results, report
from endx_jax.ranking.systems import DenseResult
from endx_jax.settings import flattened, require
from endx_jax.training.checkpoints import Checkpoints, best_step, best_validation
from endx_jax.training.hooks import EarlyStopping, SavePolicy, Trace, Validation
from endx_jax.training.loop import Hook, fit
from endx_jax.training.metric_log import check_installed
from endx_jax.training.monitor import Monitor, NonFiniteLoss
from endx_jax.training.preemption import Preemption

Validate = Callable[[dict], dict[str, float]]

# Largest share of a run's time that the encoding of answers outside the evaluated pool may take.
SHARE = 0.1
PAIRS = "pairs.jsonl"  # file of the pairs in the workdir of `train`


def run(config: Mapping, workdir: str | os.PathLike) -> Results | None:
    """Trains and evaluates a model; resumes the run in the workdir if there is one.

    Args:
      config: config tree, as `methods.config.base_config` returns it.
      workdir: the run's folder, local or `gs://BUCKET/PATH`; the README lists its files.

    Returns:
      The final results; None if the run stopped at `train.stop_at_step`, if there are no test questions, or if the
      workdir already holds this run, trained and evaluated.

    Raises:
      EndxError: settings or data are invalid, another run uses the workdir, or the disk is full.
      RunInterrupted, KeyboardInterrupt: SIGTERM or Ctrl-C; a checkpoint was saved: see `training.preemption`.
    """
    began = time.perf_counter()
    check_installed(resolve(config).train.wandb_project)
    with Preemption(workdir) as preemption, reporting_full_disk(workdir), opened(workdir) as folder:
        with gathering() as logged:
            run, sets = _prepare(config, folder)
        evaluator, validate = _evaluation(run, sets)
        if _is_finished(run):
            say(f"{folder} holds this run, trained and evaluated: nothing to do; its results are in {workdirs.RESULTS}")
            return None
        log_summary(run, [record.getMessage() for record in logged])

        reached, ended = _train(run, validate, preemption, began)

        params, step = best_params(folder, run.model, run.mesh)
        check_parameters(params, step)
        params, hybrid = _save_model(run, params, ended)
        if not ended:
            say(f"stopped at step {reached} of {run.steps}; run the same command without train.stop_at_step to resume")
            return None
        # If a share was to be held out, there were too few questions; their answers are indexed all the same.
        held_out = run.model.settings.data.test_fraction and run.model.method.embeds
        if not run.data.test.questions and not held_out:
            say(
                "no test questions, so nothing is ranked or indexed; to do either: endx evaluate "
                f"--workdir={folder} --data=FILE, or endx encode --workdir={folder} --corpus=FILE --output=INDEX"
            )
            return None
        return _report(run, evaluator, params, step, hybrid, began, validate if sets else None)


def train(
    pairs: Iterable[Any],
    workdir: str | os.PathLike = "runs/mine",
    *,
    config: str | os.PathLike | Mapping = "minilm",
    settings: Mapping[str, Any] | None = None,
    verbose: bool = True,
) -> EmbeddingModel:
    """Trains a model on pairs in memory, evaluates it, and returns it.

    As `endx train`, it writes a workdir, which `endx search`, `endx serve` and `endx_jax.load` read, and it resumes an
    interrupted run. The pairs are kept in the workdir as `pairs.jsonl`.

    Args:
      pairs: (question, answer) tuples; mappings with `question`, `answer` and further columns of a JSONL file, such as
        `negative`; a pandas DataFrame, a pyarrow Table, or a `datasets.Dataset` with these columns. Values may be
        NumPy's; NaN and the like are missing.
      workdir: the run's folder.
      config: file or recipe, as `--config` of `endx train`; or a config tree.
      settings: values of settings by dotted name, such as `{"train.steps": 500, "model.pretrained": "bge-small-en"}`.
      verbose: false for no messages but warnings, and no progress bars: level WARNING of the logger `endx_jax`.

    Raises:
      EndxError: pairs or settings are invalid, or the workdir holds another run.
      RunInterrupted, KeyboardInterrupt: the run was interrupted and saved a checkpoint; the same call resumes.

    Examples:
      >>> pairs = [(f"When does shop number {n} open?", f"Shop {n} opens at {n % 12 + 1}.") for n in range(200)]
      >>> model = endx_jax.train(pairs, "runs/shops", settings={"train.epochs": 2})  # prints its progress
      >>> model.encode_query(["When does shop number 7 open?", "When does shop number 8 open?"]).shape
      (2, 384)
    """
    require("data.path" not in (settings or {}), "data.path is where the pairs are written: leave it out of settings")
    rows, folder = rows_of(pairs), url_of(workdir) or expanded(workdir)
    file = f"{folder}/{PAIRS}"
    chosen: Any = load_config(os.fspath(config)) if isinstance(config, str | os.PathLike) else config
    tree, values = resolve(chosen).as_dict(), {**(settings or {}), "data.path": file}
    names = names_of(tree)
    for setting, value in values.items():
        value = os.fspath(value) if isinstance(value, os.PathLike) else value
        if setting not in names:
            raise EndxError(f"unknown setting {setting!r}{nearest(setting, names)}; endx train --help lists them all")
        *sections, key = setting.split(".")
        functools.reduce(operator.getitem, sections, tree)[key] = value
    agree_on_length(tree["train"], values)
    resolve(tree)
    shown = contextlib.nullcontext() if verbose else silenced()
    with shown, opened(folder) as home:  # its lock is held before the pairs are written
        before, described = read_bytes(file), (home / workdirs.CONFIG).exists()
        if described and before not in (None, rows.encode()):
            raise EndxError(f"{folder} holds a run on other pairs; pass another workdir")
        on_primary(lambda: write_bytes(file, rows.encode()), "pairs-written")
        try:
            run(tree, home)
        except EndxError as failure:
            # A run that is refused before it has described itself leaves nothing, so that the corrected call works.
            if before != rows.encode() and (home / workdirs.CONFIG).exists() == described:
                remove(file)
            place = rf"{re.escape(file)}(?:, line (\d+))?"
            row = functools.partial(re.sub, place, lambda at: f"pairs[{int(at[1]) - 1}]" if at[1] else "pairs")
            failure.rename(row)
            raise
    return load(folder)


def _prepare(config: Mapping, workdir: Workdir) -> tuple[Run, dict[str, RetrievalSet]]:
    """Returns the prepared run and the sets of `evaluation.sets`, which all processes have in the same form."""
    settings = resolve(config)
    check_equal(
        lambda: (
            {"workdir": str(workdir)}
            | {f"version of {name}": version for name, version in environment()["versions"].items()}
            | {name: str(value) for name, value, _ in flattened(settings)}
        )
    )
    sources = [source.path for source in settings.data.sets]
    ensure_prepared([*sources, settings.data.test_path, *settings.evaluation.sets])
    sets = read_sets(settings.evaluation, settings.data)
    run = prepare_run(config, workdir)
    check_equal(lambda: {f"set {name}": records.sha256 for name, records in sets.items()})
    return run, sets


def _evaluation(run: Run, sets: Mapping[str, RetrievalSet]) -> tuple[Evaluator, Validate | None]:
    """Returns the method's evaluator, and the function that validates parameters; None if there is nothing to rank."""
    model, settings, held_out = run.model, run.model.settings, run.data.validation
    evaluator = model.method.evaluator(run.train_plan.objective, run.encoder, run.mesh, settings.evaluation)
    primary = pools(held_out, settings.data).primary if held_out.questions else None
    validate = validation(evaluator, settings.evaluation, primary, sets)
    require(
        validate is not None or not settings.train.patience,
        "train.patience needs validation data: set data.validation_fraction above 0, or evaluation.sets",
    )
    return evaluator, validate


def _is_finished(run: Run) -> bool:
    """Returns true if the workdir that the primary sees holds the output of this run with the same settings."""
    needed = [run.workdir / workdirs.CONFIG, run.workdir / workdirs.RESULTS]
    if run.model.method.embeds:
        needed += [run.workdir / MODEL / MANIFEST, run.workdir / workdirs.INDEX]
    return broadcast(
        lambda: (
            all(file.is_file() for file in needed)
            # Settings that the version of the run did not have are at their defaults.
            and workdirs.read_config(run.workdir).as_dict() == run.model.settings.as_dict()
            and best_step(run.workdir, run.model.settings.evaluation.metric) is not None
        ),
        "finished",
    )


def _train(run: Run, validate: Validate | None, preemption: Preemption, began: float) -> tuple[int, bool]:
    """Trains to the end of the run or to `train.stop_at_step`; returns the step reached, and true for the end."""
    train, metric = run.model.settings.train, run.model.settings.evaluation.metric
    upload, base = run.workdir.upload, run.model.base
    checkpoints = Checkpoints(
        run.workdir, keep=train.keep_checkpoints, metric=metric, report=say, upload=upload, base=base
    )
    run, state, train_step = compile_and_restore(run, checkpoints)
    start = int(state.step)
    check_parameters(state.params, start)  # each process has read pretrained weights from its own files
    # After the last check of the settings, so that a workdir can be used with other settings until training begins.
    on_primary(lambda: _describe(run), "workdir-described")
    best = best_validation(run.workdir, metric)
    stopping = EarlyStopping(metric, train.patience, train.evaluate_every, best and (best[0], best[1][metric]))
    stop = start if stopping.stops_at(start) else min(run.steps, train.stop_at_step or run.steps)
    trace = Trace(run.workdir / workdirs.PROFILE, start=start, steps=train.profile_steps, port=train.profiler_port)
    monitor = _monitor(run, start, began)
    validating = Validation(validate, stopping, monitor) if validate else None
    agreed = functools.partial(preemption.agreed, run.mesh)
    hooks = [
        Hook.every(1, lambda done, _, metrics: trace.end_step(done, metrics)),
        Hook.every(1, lambda done, _, metrics: monitor.push(done, metrics)),
        *([Hook.every(train.evaluate_every, validating, run.steps)] if validating else []),
        Hook.every(1, SavePolicy(train, agreed, checkpoints, monitor, validating, stop)),
    ]
    try:
        with preemption.deferred():
            state = fit(state, train_step, _batches(run, start, stop, monitor), hooks, trace.step)
            checkpoints.wait()
    except BaseException as failure:
        # Otherwise a checkpoint that is still being written would be lost, or written without the lock of the workdir.
        # Of several processes, all see the same loss; after other errors, some may be waiting for this one.
        if jax.process_count() == 1 or isinstance(failure, NonFiniteLoss):
            with contextlib.suppress(EndxError, RunInterrupted):
                checkpoints.close()
        raise
    finally:
        trace.close()
        monitor.close()
    # Not called after a failure, when other processes may be waiting for this one. A single process still finishes its
    # writes before it exits.
    checkpoints.close()
    reached = int(state.step)
    if stopping.stops_at(reached) and stopping.best:
        step, value = stopping.best
        say(f"early stopping at step {reached}: {metric} is not above its {value:.4f} of step {step} (train.patience)")
        return reached, True
    return reached, reached == run.steps


def _batches(run: Run, start: int, stop: int, monitor: Monitor) -> Iterator[Batch]:
    """Yields the global batches of steps [start, stop) on the devices."""
    settings = run.model.settings
    rows = run.stream.iterate(start, stop, settings.data.reading_threads)
    for _ in range(start, stop):
        with monitor.data_wait():
            batch = next(rows)
        yield to_global(batch, run.mesh, settings.train.global_batch_size)


def _monitor(run: Run, start: int, began: float) -> Monitor:
    """Returns the monitor of a run that starts or resumes at a step."""

    def question_ids(step: int) -> list[str]:  # steps are counted from 1
        rows = run.stream.pairs.index[run.stream.example_ids(step - 1), 0]
        return run.training.question_names(rows)

    return Monitor(
        run.workdir.folder,
        run.model.settings.train,
        start=start,
        steps=run.steps,
        began=began,
        example_names=question_ids,
        warnings=run.model.method.warnings,
    )


def _save_model(run: Run, params: dict, ended: bool) -> tuple[dict, Hybrid | None]:
    """Writes the model folder; returns the parameters with adapters merged into them, and the fusion with BM25."""
    model = run.model
    save_adapters(run.workdir, model, params["dual_encoder"])
    params = model.without_adapters(params, run.mesh)
    if not model.method.embeds:
        return params, None
    towers = params["dual_encoder"]
    hybrid = fit_hybrid(run, towers) if ended else None
    teacher = run.stream.pairs.guide_identity if model.method.searches_index_of_teacher else ""
    save_towers(run.workdir, model, towers, run.mesh, hybrid, teacher)
    return params, hybrid


def _report(
    run: Run,
    evaluator: Evaluator,
    params: dict,
    step: int,
    hybrid: Hybrid | None,
    began: float,
    validate: Validate | None,
) -> Results:
    """Evaluates the parameters of a step on the test set; writes and prints the results; indexes the answers.

    With `validate`, the parameters before training are also ranked on the sets of validation.
    """
    settings, method = run.model.settings, run.model.method
    whole = pools(run.data.test, settings.data)
    shared = with_many_questions(whole.primary, settings.evaluation.min_questions)
    test = Pools({name: evaluator.select(records) for name, records in (whole | shared).items()})
    primary = test.primary
    if primary.questions:
        say(f"evaluating {len(primary.questions):,} held-out questions against {len(primary.candidates):,} candidates")
    about = {"dataset": settings.data.test_path or settings.data.path, "split": "test", "hybrid": hybrid}
    results, _ = report(test, {}, reverse=settings.evaluation.reverse, **about)

    def initial() -> dict:
        params = put(run.model.initial_params(), state_shardings(run.model.abstract_params, run.mesh))
        check_parameters(params)
        return params

    reporting, towers = time.perf_counter(), params["dual_encoder"]
    if primary.questions:
        dense = evaluator.report(results, params, initial if settings.evaluation.untrained else None)
    else:
        questions, candidates = (run.encoder(towers, side, []) for side in SIDES)
        dense = DenseResult({}, questions, candidates)
    write_index = None
    if dense is not None:
        now, encoded = time.perf_counter(), len(primary.questions) + len(primary.candidates)
        most = encoded / (now - reporting) * SHARE * (now - began)
        write_index = _index_writer(run, towers, step, results, dense, most)
    if best := best_validation(run.workdir, settings.evaluation.metric):
        ranked = UNTRAINED in results.evaluations.get(test.primary_name, ())
        add_validation(results, *best, validate(initial()) if validate and ranked else None)
    warn_of_losses(results, settings.evaluation.metric.rpartition("/")[2])

    def write() -> None:
        if write_index:
            write_index()
        results.write(run.workdir / workdirs.RESULTS, run.workdir / workdirs.EVALUATION / "test")
        if method.embeds:
            model_card.write_run_card(run.workdir.folder)

    on_primary(write, "results-written")
    chosen = f"the best by {settings.evaluation.metric} in validation" if best else "the last"
    say(f"\n{results.tables()}\n\n`trained` is the checkpoint of step {step}, {chosen}.")
    return results


def _index_writer(
    run: Run, towers: dict, step: int, results: Results, dense: DenseResult, most: float
) -> Callable[[], None]:
    """Encodes what the index holds beside the evaluated texts; returns the function that writes the index.

    Also adds the row `known` to the results. `most` limits the number of answers to encode, and that of questions.
    """
    settings, primary = run.model.settings, results.pools.primary
    about = {"name": str(run.workdir), "identity": run.encoder.identity(towers), "step": step}
    documents, vectors, corpus = searched_answers(run, towers, primary, dense.candidates, most)
    documents, known = with_known(run, towers, documents, results, dense, most)
    return functools.partial(
        write_pool,
        run.workdir / workdirs.INDEX,
        vectors,
        documents,
        metric=metric_of(cosine=settings.model.normalize),
        model={**about, "product_dtype": run.model.dual_encoder.answer.product_dtype},
        corpus=corpus,
        known=known,
        language=primary.text_language if primary.questions else settings.data.language,
    )


def _describe(run: Run) -> None:
    """Writes settings, hash of the data and description of the model; removes the results of an earlier run."""
    (run.workdir / workdirs.RESULTS).unlink(missing_ok=True)
    questions = {name: len(part.questions) for name, part in vars(run.data).items()}
    about_data = {"sha256": run.data_sha256, "questions": questions}
    if run.model.base:
        about_data["base_sha256"] = run.model.base_sha256
    workdirs.write_config(run.workdir, run.model.settings, about_data)
    save_description(run.workdir, run.model)
