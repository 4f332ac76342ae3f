"""A run from its config to its results: `run` and the steps that it takes, in their order.

1. `prepare_run` reads and checks settings, data and model, makes the settings final, and plans the batches.
2. `_train` compiles the step, resumes from a checkpoint if there is one, and calls `loop.fit` with its hooks.
3. `_save_model` writes the towers of the best checkpoint, with the fusion with BM25, for `endx_jax.load`; those before
   training if validation shows that they are better.
4. `_report` ranks the test set with BM25 and with the towers before and after training.
5. `run_index.index_writer` indexes the answers for search.
"""

import contextlib
import dataclasses
import functools
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax

from endx_jax.batch import Batch
from endx_jax.buckets import url_of
from endx_jax.data.batches.idf import idf_of_sides
from endx_jax.data.batches.token_tables import TextReader
from endx_jax.data.sets.records import Pools, RetrievalSet
from endx_jax.data.sets.splits import Splits, with_many_questions
from endx_jax.data.sources import pools, read_splits
from endx_jax.errors import EndxError, RunInterrupted
from endx_jax.experiment import model_card
from endx_jax.experiment import workdir as workdirs
from endx_jax.experiment.compile_step import compile_and_restore
from endx_jax.experiment.config import resolve
from endx_jax.experiment.data import read_sets
from endx_jax.experiment.finalize import finalize
from endx_jax.experiment.model import Model, read_encoders
from endx_jax.experiment.prepared_run import Run, log_summary
from endx_jax.experiment.results_page import results_page
from endx_jax.experiment.run_index import index_writer
from endx_jax.experiment.saved_model import best_params, save_adapters, save_description, save_towers
from endx_jax.experiment.served import Served, choose_served
from endx_jax.experiment.tokens import stored
from endx_jax.experiment.train_plan import plan_training
from endx_jax.experiment.workdir import Workdir, opened
from endx_jax.files import expanded, reporting_full_disk, write_text
from endx_jax.inference.encode import TextEncoder
from endx_jax.inference.head_encoder import HeadEncoder
from endx_jax.inference.manifest import MANIFEST, MODEL, WEIGHTS
from endx_jax.inference.vector_cache import VectorCache
from endx_jax.methods import find_method
from endx_jax.methods.evaluation import UNTRAINED, Evaluator, add_validation, compare_with_untrained, validation
from endx_jax.models.dual_encoder import SIDES
from endx_jax.models.sharding_hints import platform
from endx_jax.parallel.agreement import broadcast, check_equal, check_parameters, on_primary
from endx_jax.parallel.console import gathering, say
from endx_jax.parallel.environment import check_flags, environment, use_compilation_cache
from endx_jax.parallel.memory import measure
from endx_jax.parallel.mesh import make_mesh
from endx_jax.parallel.sharding import to_global
from endx_jax.ranking.results import Results, report
from endx_jax.ranking.systems import DenseResult
from endx_jax.settings import flattened, require
from endx_jax.training.checkpoints import Checkpoints, best_checkpoint, best_step
from endx_jax.training.hooks import EarlyStopping, SavePolicy, Trace, Validation
from endx_jax.training.loop import Hook, calls, fit
from endx_jax.training.metric_log import check_installed
from endx_jax.training.monitor import Monitor, NonFiniteLoss
from endx_jax.training.preemption import Preemption
from endx_jax.training.step import Stacked

Validate = Callable[[dict], dict[str, float]]


def run(config: Mapping, workdir: str | os.PathLike) -> Results | None:
    """Trains and evaluates a model; resumes the run in the workdir if there is one.

    Args:
      config: config tree, as `methods.config.base_config` returns it.
      workdir: the run's folder, local or `gs://BUCKET/PATH`; the README lists its files.

    Returns:
      The final results, without an evaluation if there are no test questions; None if the run stopped at
      `train.stop_at_step`, or if the workdir already holds this run, trained and evaluated.

    Raises:
      EndxError: settings or data are invalid, another run uses the workdir, or the disk is full.
      RunInterrupted: SIGTERM during training, after a checkpoint was saved; or a bucket can't be reached.
      KeyboardInterrupt: Ctrl-C during training, after a checkpoint was saved, or at any time in an interactive session.
        Before and after the training steps, signals end other processes: see `training.preemption`.
    """
    began = time.perf_counter()
    workdir = workdir if isinstance(workdir, Workdir) else url_of(workdir) or expanded(workdir)
    with Preemption(workdir) as preemption, reporting_full_disk(workdir), opened(workdir) as folder:
        with gathering() as logged:
            run = prepare_run(config, folder)
        evaluator, validate = _evaluation(run)
        if _is_finished(run):
            say(f"{folder} holds this run, trained and evaluated: nothing to do; its results are in {workdirs.RESULTS}")
            return None
        log_summary(run, [record.getMessage() for record in logged])

        reached, ended = _train(run, validate, preemption, began)

        params, step = best_params(folder, run.model, run.plan.mesh)
        check_parameters(params, step)
        params, served = _save_model(run, params, ended)
        if not ended:
            steps = run.plan.steps
            say(f"stopped at step {reached} of {steps}; run the same command without train.stop_at_step to resume")
            return None
        return _report(run, evaluator, params, step, served, validate if run.sets else None)


def prepare_run(config: Mapping, workdir: str | os.PathLike) -> Run:
    """Reads and checks everything that a run needs; writes nothing.

    Args:
      config: config tree, as `methods.config.base_config` returns it.
      workdir: the run's folder.

    Raises:
      EndxError: settings, data, model or workdir are invalid.
    """
    check_flags(training=True)
    settings = resolve(config)
    check_installed(settings.train.wandb_project)
    require(
        not (settings.data.format and settings.objective.needs_answers),
        f"data.format={settings.data.format} has no questions to train objective.name={settings.objective.name} on: "
        "make some with `endx generate`, or search with the untrained model; embedding_distillation learns from texts",
    )
    workdir = workdir if isinstance(workdir, Workdir) else Workdir(workdir)
    check_equal(
        lambda: (
            {"workdir": str(workdir)}
            | {f"version of {name}": version for name, version in environment()["versions"].items()}
            | {name: str(value) for name, value, _ in flattened(settings)}
        )
    )
    workdirs.check_writable(workdir.folder)
    use_compilation_cache(settings.train.compilation_cache)
    mesh, method = make_mesh(settings.mesh), find_method(settings.objective.name)

    # Data, and the text processors of the pretrained encoders.
    sets = read_sets(settings.evaluation, settings.data)
    (sources, processors), data = _all_of(lambda: read_encoders(settings), lambda: read_splits(settings.data))
    most, store = settings.data.max_train_pairs, None
    used = data.train.first(most) if most and not settings.data.tokens else data.train
    if settings.data.tokens:
        needs_texts = settings.model.token_weights or settings.objective.given_model or method.frozen_towers
        owner = getattr(method.annotate, "__module__", "endx_jax")  # the library's need texts for `given_model`
        require(
            not needs_texts and owner.startswith("endx_jax"),
            f"{settings.data.tokens} holds tokens and no texts, which token weights, a guide or teacher, heads on "
            "frozen towers and other methods' `annotate` need: leave data.tokens empty",
        )
        store = stored(settings.data, processors, data)
    training = store or data.train

    # The final settings, and the model.
    settings = finalize(settings, sources, (store or used).counts, workdir)
    weights = None
    if settings.model.token_weights:
        texts = {"question": data.train.questions, "answer": data.train.candidates}
        sizes = {side: source.config.vocab_size for side, source in sources.items()}
        weights = idf_of_sides(texts, processors, sizes)
    model = Model(settings, sources, processors, weights, platform(mesh))
    workdirs.check_agrees(workdir, settings, training.sha256, model.base_sha256)
    check_equal(
        lambda: (
            {name: str(value) for name, value, _ in flattened(settings)}
            | {f"{side} tokenizer": processor.tokenizer.identity for side, processor in processors.items()}
            | _hashes(data, sets)
            | {"training data": training.sha256, "pretrained weights": model.weights_sha256}
        )
    )

    # The pairs as tokens, or as vectors below heads, and the plan of the steps.
    encoder: TextEncoder | HeadEncoder = model.text_encoder(mesh)
    readers: Mapping[str, TextReader] = processors
    if method.frozen_towers:
        cache = VectorCache(settings.data.cache)
        encoder = HeadEncoder(model.text_encoder(mesh), model.initial_params()["dual_encoder"], cache)
        readers = encoder.readers
    pairs = store.pairs() if store else used.tokenize(readers)
    if most:
        pairs = pairs.first(most)
    if method.annotate:
        pairs = method.annotate(pairs, used, settings, mesh)
    plan = plan_training(model, mesh, pairs, measure())
    return Run(workdir, settings, data, sets, training, model, encoder, plan)


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


def _evaluation(run: Run) -> tuple[Evaluator, Validate | None]:
    """Returns the method's evaluator, and the function that validates parameters; None if there is nothing to rank."""
    settings, held_out = run.settings, run.data.validation
    evaluator = run.model.method.evaluator(run.plan.objective, run.encoder, run.plan.mesh, settings.evaluation)
    primary = pools(held_out, settings.data).primary if held_out.questions else None
    validate = validation(evaluator, settings.evaluation, primary, run.sets)
    require(
        validate is not None or not settings.train.patience,
        "train.patience needs validation data: set data.validation_fraction above 0, or evaluation.sets",
    )
    return evaluator, validate


def _is_finished(run: Run) -> bool:
    """Returns true if the workdir that the primary sees holds the output of this run with the same settings."""
    needed = [run.workdir / workdirs.CONFIG, run.workdir / workdirs.RESULTS]
    if run.model.method.embeds:
        needed += [run.workdir / name for name in (f"{MODEL}/{MANIFEST}", f"{MODEL}/{WEIGHTS}", workdirs.INDEX)]
    return broadcast(
        lambda: (
            all(file.is_file() for file in needed)
            # Settings that the version of the run did not have are at their defaults.
            and workdirs.read_config(run.workdir).as_dict() == run.settings.as_dict()
            and workdirs.read_data(run.workdir).get("evaluated") == _hashes(run.data, run.sets)
            and best_step(run.workdir, run.settings.evaluation.metric) is not None
        ),
        "finished",
    )


def _train(run: Run, validate: Validate | None, preemption: Preemption, began: float) -> tuple[int, bool]:
    """Trains to the end of the run or to `train.stop_at_step`; returns the step reached, and true for the end."""
    train, metric = run.settings.train, run.settings.evaluation.metric
    upload, base = run.workdir.upload, run.model.base
    checkpoints = Checkpoints(
        run.workdir, keep=train.keep_checkpoints, metric=metric, report=say, upload=upload, base=base
    )
    plan, state, train_step = compile_and_restore(run.plan, checkpoints)
    run = dataclasses.replace(run, plan=plan)
    start = int(state.step)
    check_parameters(state.params, start)  # each process has read pretrained weights from its own files
    # After the last check of the settings, so that a workdir can be used with other settings until training begins.
    on_primary(lambda: _describe(run), "workdir-described")
    step, measured = best_checkpoint(run.workdir, metric) or (start, {})
    best = (step, measured[metric]) if metric in measured else None
    stopping = EarlyStopping(metric, train.patience, train.evaluate_every, best)
    stop = start if stopping.stops_at(start) else min(plan.steps, train.stop_at_step or plan.steps)
    trace = Trace(run.workdir / workdirs.PROFILE, start=start, steps=train.profile_steps, port=train.profiler_port)
    monitor = _monitor(run, start, began)
    validating = Validation(validate, stopping, monitor) if validate else None
    agreed = functools.partial(preemption.agreed, plan.mesh)
    hooks = [
        Hook.every(1, lambda done, _, metrics: trace.end_step(done, metrics)),
        Hook.every(1, lambda done, _, metrics: monitor.push(done, metrics)),
        *([Hook.every(train.evaluate_every, validating, plan.steps)] if validating else []),
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
    return reached, reached == plan.steps


def _batches(run: Run, start: int, stop: int, monitor: Monitor) -> Iterator[Batch | Stacked]:
    """Yields the global batches of steps [start, stop) on the devices, those of one call stacked."""
    train, mesh = run.settings.train, run.plan.mesh
    rows = run.plan.stream.iterate(start, stop, run.settings.data.reading_threads)

    def read() -> Iterator[Batch]:
        for _ in range(start, stop):
            with monitor.data_wait():
                batch = next(rows)
            yield batch

    for call in calls(read(), start, train):
        if len(call) == 1:
            yield to_global(call[0], mesh, train.global_batch_size)
        else:
            yield to_global(Stacked.of(call), mesh, train.global_batch_size, axis=1)


def _monitor(run: Run, start: int, began: float) -> Monitor:
    """Returns the monitor of a run that starts or resumes at a step."""

    def question_ids(step: int) -> list[str]:  # steps are counted from 1
        stream = run.plan.stream
        return run.training.question_names(stream.pairs.index[stream.example_ids(step - 1), 0])

    return Monitor(
        run.workdir.folder,
        run.settings.train,
        start=start,
        steps=run.plan.steps,
        began=began,
        example_names=question_ids,
        warnings=run.model.method.warnings,
    )


def _save_model(run: Run, params: dict, ended: bool) -> tuple[dict, Served | None]:
    """Writes the model folder; returns the parameters with adapters merged into them, and what is served."""
    model, mesh = run.model, run.plan.mesh
    save_adapters(run.workdir, model, params["dual_encoder"])
    params = model.without_adapters(params, mesh)
    if not model.method.embeds:
        return params, None
    towers, teacher = params["dual_encoder"], run.plan.stream.pairs.teacher_identity
    if not ended:
        save_towers(run.workdir, model, towers, mesh, None, teacher)
        return params, None
    compared = run.settings.evaluation.untrained
    before = (lambda: model.without_adapters(run.untrained, mesh)["dual_encoder"]) if compared else None
    served = choose_served(run, towers, before)
    teacher, system = "" if served.untrained else teacher, served.about["system"]
    save_towers(run.workdir, model, served.towers, mesh, served.hybrid, teacher, system)
    if served.untrained:
        say(f"warning: {served}")
    return params, served


def _report(
    run: Run,
    evaluator: Evaluator,
    params: dict,
    step: int,
    served: Served | None,
    validate: Validate | None,
) -> Results:
    """Evaluates the parameters of a step on the test set; writes and prints the results; indexes the answers."""
    settings, model = run.settings, run.model
    whole = pools(run.data.test, settings.data)
    shared = with_many_questions(whole.primary, settings.evaluation.min_questions)
    test = Pools({name: evaluator.select(records) for name, records in (whole | shared).items()})
    primary = test.primary
    if primary.questions:
        say(f"evaluating {len(primary.questions):,} held-out questions against {len(primary.candidates):,} candidates")
    else:
        say(f"no test questions, so nothing is ranked; to do so: endx evaluate --workdir={run.workdir} --data=FILE")
    dataset, hybrid = settings.data.test_path or settings.data.path, served and served.trained
    results, _ = report(test, {}, reverse=settings.evaluation.reverse, dataset=dataset, split="test", hybrid=hybrid)
    dense = None
    if primary.questions:
        dense = evaluator.report(results, params, (lambda: run.untrained) if settings.evaluation.untrained else None)
    if served and (served.untrained or not primary.questions):
        encoder = run.encoder if primary.questions else model.text_encoder(run.plan.mesh)  # which encodes no texts too
        dense = DenseResult({}, *map(encoder, (served.towers,) * 2, SIDES, (primary.questions, primary.candidates)))
    write_index = index_writer(run, served, step, results, dense) if served and dense else None
    _, measured = best_checkpoint(run.workdir, settings.evaluation.metric) or (step, {})
    validated = settings.evaluation.metric in measured
    if validated:
        ranked = UNTRAINED in results.evaluations.get(test.primary_name, ())
        add_validation(results, step, measured, validate(run.untrained) if validate and ranked else None)
    metric = settings.evaluation.metric.rpartition("/")[2]
    compare_with_untrained(results, metric, merge=not (served and served.untrained))
    if served:
        results.sections["served"] = served.about
        results.notes.append(str(served))

    def write() -> None:
        if write_index:
            write_index()
        results.write(run.workdir / workdirs.RESULTS, run.workdir / workdirs.EVALUATION / workdirs.TEST)
        write_text(run.workdir / workdirs.PAGE, results_page(results, run.workdir.folder, settings.evaluation.metric))
        if model.method.embeds:
            model_card.write_run_card(run.workdir.folder)

    on_primary(write, "results-written")
    chosen = f"the best by {settings.evaluation.metric} in validation" if validated else "the last"
    say(f"\n{results.tables()}\n\n`trained` is the checkpoint of step {step}, {chosen}.")
    return results


def _hashes(data: Splits, sets: Mapping[str, RetrievalSet]) -> dict[str, str]:
    """Returns the SHA-256 of each set, by its name."""
    named = {f"{name} set": part for name, part in vars(data).items()}
    named |= {f"set {name}": part for name, part in sets.items()}
    return {name: part.ranked_sha256 for name, part in named.items()}


def _describe(run: Run) -> None:
    """Writes settings, hash of the data and description of the model; removes the results of an earlier run."""
    for name in (workdirs.RESULTS, workdirs.PAGE):
        (run.workdir / name).unlink(missing_ok=True)
    questions = {name: len(part.questions) for name, part in vars(run.data).items()}
    about_data = {"sha256": run.training.sha256, "questions": questions, "evaluated": _hashes(run.data, run.sets)}
    if run.model.base:
        about_data["base_sha256"] = run.model.base_sha256
    workdirs.write_config(run.workdir, run.settings, about_data)
    save_description(run.workdir, run.model)
