"""Preparation of a run: data, model, plan, initial state and compiled step, and their summary."""

import concurrent.futures
import contextlib
import dataclasses
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from endx_jax import json_files
from endx_jax.batch import Batch
from endx_jax.buckets import read_bytes, url_of, write_bytes
from endx_jax.data.batches.collator import BatchStream
from endx_jax.data.batches.packing import PackingPlan
from endx_jax.data.batches.token_tables import TextReader, TrainingData
from endx_jax.data.sets.splits import FEW, Splits
from endx_jax.errors import EndxError, RunInterrupted, counted
from endx_jax.experiment import workdir as workdirs
from endx_jax.experiment.config import resolve
from endx_jax.experiment.data import read_splits
from endx_jax.experiment.model import Model, build_model, with_token_weights
from endx_jax.experiment.tokens import stored
from endx_jax.experiment.train_plan import StepMemory, TrainPlan, complete, plan_training
from endx_jax.experiment.workdir import Workdir
from endx_jax.files import expanded
from endx_jax.inference.encode import TextEncoder
from endx_jax.inference.head_encoder import HeadEncoder
from endx_jax.inference.vector_cache import VectorCache
from endx_jax.models.attention import seen_reasons
from endx_jax.models.dual_encoder import SIDES
from endx_jax.models.products import AUTO, BFLOAT16, FLOAT32, chosen_product_dtype, multiplies_bfloat16
from endx_jax.models.sharding_hints import platform
from endx_jax.parallel.agreement import broadcast, check_equal
from endx_jax.parallel.console import say, working
from endx_jax.parallel.environment import check_flags, use_compilation_cache
from endx_jax.parallel.memory import gigabytes, measure, trim
from endx_jax.parallel.mesh import make_mesh
from endx_jax.parallel.sharding import put
from endx_jax.pretrained.settings import NO_ENCODER
from endx_jax.settings import flattened, require
from endx_jax.training.checkpoints import Checkpoints
from endx_jax.training.compilation import CompiledStep, abstract_batch, compile_ahead, shape_of
from endx_jax.training.step import Step, TrainState, split_frozen


@dataclasses.dataclass(frozen=True)
class Run:
    """A prepared run, whose settings, data and files have been checked.

    Attributes:
      workdir: the run's folder.
      model: model to train.
      data: train, validation and test sets.
      training: training data, the train set or `data.tokens`.
      data_sha256: sha256 of the training set, which must not change when the run resumes.
      mesh: device mesh.
      train_plan: batches, steps and optimizer.
      encoder: text encoder for evaluation.
    """

    workdir: Workdir
    model: Model
    data: Splits
    training: TrainingData
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
    require(
        not (settings.data.format and settings.objective.needs_answers),
        f"data.format={settings.data.format} has no questions to train objective.name={settings.objective.name} on: "
        "make some with `endx generate`, or search with the untrained model; embedding_distillation learns from texts",
    )
    workdir = workdir if isinstance(workdir, Workdir) else Workdir(workdir)
    workdirs.check_writable(workdir.folder)
    use_compilation_cache(settings.train.compilation_cache)
    mesh = make_mesh(settings.mesh)
    product_dtype = broadcast(lambda: _product_dtype(settings.model.product_dtype, workdir), "product-dtype")
    settings = dataclasses.replace(settings, model=dataclasses.replace(settings.model, product_dtype=product_dtype))
    model, data = _all_of(lambda: build_model(settings), lambda: read_splits(settings.data))
    training: TrainingData = data.train
    if settings.data.tokens:
        needs_texts = settings.model.token_weights or settings.objective.given_model or model.method.frozen_towers
        owner = getattr(model.method.annotate, "__module__", "endx_jax")  # the library's need texts for `given_model`
        require(
            not needs_texts and owner.startswith("endx_jax"),
            f"{settings.data.tokens} holds tokens and no texts, which token weights, a guide or teacher, heads on "
            "frozen towers and other methods' `annotate` need: leave data.tokens empty",
        )
        training = stored(settings.data, model.processors, data)
    data_sha256, most = training.sha256, settings.data.max_train_pairs
    used = training.first(most) if most else training
    # Not the settings above: the model's are completed from the pretrained folder.
    settings = complete(model.settings, used.counts)
    model = dataclasses.replace(model, settings=settings)
    workdirs.check_agrees(workdir, model.settings, data_sha256, model.base_sha256)
    check_equal(
        lambda: (
            {name: str(value) for name, value, _ in flattened(model.settings)}
            | {f"{side} tokenizer": processor.tokenizer.identity for side, processor in model.processors.items()}
            | {"train set": data_sha256, "validation set": data.validation.sha256, "test set": data.test.sha256}
            | {"pretrained weights": model.weights_sha256}
        )
    )
    model = dataclasses.replace(with_token_weights(model, data.train), platform=platform(mesh))
    encoder: TextEncoder | HeadEncoder = model.text_encoder(mesh)
    readers: Mapping[str, TextReader] = model.processors
    if model.method.frozen_towers:
        cache = VectorCache(settings.data.cache)
        encoder = HeadEncoder(model.text_encoder(mesh), model.initial_params()["dual_encoder"], cache)
        readers = encoder.readers
    pairs = used.tokenize(readers)
    if most:
        pairs = pairs.first(most)
    if model.method.annotate:
        texts = data.train.first(most) if most else data.train
        pairs = model.method.annotate(pairs, texts, settings, mesh)
    train_plan = plan_training(model, mesh, pairs, measure())
    return Run(workdir, model, data, training, data_sha256, mesh, train_plan, encoder)


def _product_dtype(name: str, workdir: Workdir) -> str:
    """Returns the data type of products on CPUs; `auto` is that of the run if it has begun, perhaps on another CPU."""
    if name == AUTO and (workdir / workdirs.CONFIG).exists():
        return workdirs.read_config(workdir).model.product_dtype
    return chosen_product_dtype(name)


def compile_and_restore(run: Run, checkpoints: Checkpoints | None = None) -> tuple[Run, TrainState, Step]:
    """Compiles the step, and creates or restores the state.

    If settings leave a choice of chunks and rematerialisation, the step is compiled until one fits into memory: see
    `train_plan.first_that_fits`. On accelerators a later run with the same settings and devices reads the choice.

    Args:
      run: run of `prepare_run`.
      checkpoints: checkpoints to resume from; None to start from the initial parameters.

    Returns:
      (run, state, step): the run with the batches of the compiled step, the state, and the step.

    Raises:
      EndxError: the step needs more memory than is free.
    """
    train_plan, folder = run.train_plan, run.model.settings.train.compilation_cache
    memory = train_plan.memory
    if not train_plan.is_asked:
        _check_fits(run, train_plan.expected_peak)
    say(f"memory: expected peak {gigabytes(train_plan.expected_peak)} of {gigabytes(memory.total)} free")
    key = train_plan.key() if folder and train_plan.is_asked else ""
    choice = read_choice(folder, key) if key else None
    if choice in train_plan.choices:
        assert choice is not None
        chosen = dataclasses.replace(train_plan, choice=choice, choices=(choice,))
        run = dataclasses.replace(run, train_plan=chosen)

    def load() -> TrainState:
        start = checkpoints.latest_step if checkpoints else None
        if checkpoints and start is not None:
            say(f"resuming from the checkpoint of step {start} of {run.steps}")
            state = checkpoints.restore(start, train_plan.state)
            return dataclasses.replace(state, params=run.model.with_base(state.params, run.mesh))
        params = put(run.model.initial_params(), train_plan.shardings.params)
        return jax.jit(train_plan.create, out_shardings=train_plan.shardings)(params)

    with concurrent.futures.ThreadPoolExecutor(1) as thread:  # parameters are read while the step is compiled
        compiling = thread.submit(_compile_what_fits, run)
        state = load()
        run, step = compiling.result()
    trim()
    check_equal(lambda: {"choice of chunks": str(run.train_plan.choice)})
    _check_fits(run, memory.peak(step.bytes()))
    if key:
        write_choice(folder, key, run.train_plan.choice)
    return run, state, step


def _compile_what_fits(run: Run) -> tuple[Run, CompiledStep]:
    """Compiles the step for the first choice of the plan that fits into memory, or for the last one."""
    steps: dict[StepMemory, CompiledStep] = {}
    needed: list[str] = []

    def compiled(train_plan: TrainPlan) -> int:
        if needed or train_plan.is_asked:
            needs = needed[-1] if needed else f"should need {gigabytes(train_plan.expected_peak)}"
            free = gigabytes(train_plan.memory.total)
            say(f"memory: the step {needs} of {free}; compiling it with {train_plan.choice}")
        step = steps[train_plan.choice] = _compile(run, train_plan, train_plan.batches_to_ask())
        needed.append(f"needs {gigabytes(train_plan.memory.peak(step.bytes()))}")
        return step.bytes()

    train_plan = run.train_plan.fitted(compiled)
    step = steps[train_plan.choice]
    others = [batch for batch in train_plan.stream.profiles() if shape_of(batch) not in step.programs]
    if others and not step.refused:
        programs = {**step.programs, **_compile(run, train_plan, others).programs}
        step = dataclasses.replace(step, programs=programs)
    return dataclasses.replace(run, train_plan=train_plan), step


def _compile(run: Run, train_plan: TrainPlan, batches: Sequence[Batch]) -> CompiledStep:
    started = time.perf_counter()
    programs = f"{len(batches)} program{'s' if len(batches) > 1 else ''}"
    cached = " (cached for later runs)" if run.model.settings.train.compilation_cache else ""
    progress = working(f"compiling {programs} for the training step{cached}") if batches else contextlib.nullcontext()
    with progress:
        step = compile_ahead(train_plan.train_step, train_plan.state, batches, run.mesh)
    if batches:
        say(f"compiled in {time.perf_counter() - started:.0f} s")
    return step


def _check_fits(run: Run, peak: int) -> None:
    """Raises EndxError if the step does not fit into memory, before the system kills the process."""
    memory = run.train_plan.memory
    if peak > memory.total:
        rows = run.train_plan.rows_at_once
        smaller = f"train.tower_chunk below {rows}, " if rows > 1 else ""
        raise EndxError(
            f"a step needs {gigabytes(peak)} of memory and {gigabytes(memory.total)} are free: end other programs, or "
            f"set {smaller}a smaller data.answer_length or a smaller model.pretrained"
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


def read_choice(folder: str, key: str) -> StepMemory | None:
    """Returns the choice that `write_choice` wrote, as the primary process reads it; None if there is none."""

    def read() -> dict | None:
        try:
            contents = read_bytes(_choice_file(folder, key)) or b"{}"
            return StepMemory(**json_files.parse(contents, "choice", dict))._asdict()
        except (EndxError, RunInterrupted, OSError, TypeError):
            return None

    values = broadcast(read, "choice")
    return StepMemory(**values) if values else None


def write_choice(folder: str, key: str, choice: StepMemory) -> None:
    """Writes a choice for later runs with the same key; no effect if the disk is full or read-only."""
    with contextlib.suppress(EndxError, RunInterrupted, OSError):
        write_bytes(_choice_file(folder, key), (json.dumps(choice._asdict()) + "\n").encode())


def _choice_file(folder: str, key: str) -> str:
    return f"{url_of(folder) or expanded(folder)}/choice-{key}.json"


def log_summary(run: Run, logged: Iterable[str]) -> None:
    """Prints one line each about data, model, parameters, devices and steps, then the readers' warnings and `notes`."""
    model, steps, stream = run.model, run.steps, run.stream
    settings, devices = model.settings, run.mesh.devices.ravel()
    counts = {name: part.counts.questions for name, part in (vars(run.data) | {"train": run.training}).items()}
    sizes = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    say(f"data: {settings.data.path}, questions: {sizes}")
    answer_tower = f" and {settings.model.answer_pretrained}" if settings.model.answer_pretrained else ""
    encoder = {"": "", NO_ENCODER: "the token table of "}.get(
        settings.model.encoder, f"a new {settings.model.encoder} on "
    )
    towers = f"{encoder}{settings.model.pretrained}{answer_tower}"
    with_heads = " and ".join(f"{side}s" for side in SIDES if model.dual_encoder.tower(side).head is not None)
    heads = f", heads on {with_heads}" if with_heads else ""
    assumed = " (the folder states none)" * (not (settings.model.encoder or model.sources["question"].head.pooling))
    say(f"model: {towers}, {settings.model.sharing}, {settings.model.pooling} pooling{assumed}{heads}")
    if settings.model.init_from:
        new = sorted({"/".join(path.split("/")[:3]) for path in model.new_parameters})
        say(f"starts from: {settings.model.init_from}; new: {', '.join(new) or 'nothing'}")
    say(f"parameters: {_parameter_counts(model)}")
    say(f"devices: {len(devices)} x {devices[0].device_kind}, in {jax.process_count()} process(es)")
    for line in attention_lines(run.train_plan):
        say(line)
    batches = _describe_batches(stream.plan, model.method.frozen_towers)
    warmup = settings.optimizer.fitted(steps).warmup_steps
    length = f"{len(stream.pairs):,} pairs: {steps:,} steps of {settings.train.global_batch_size}, warm-up {warmup}"
    say(f"training: {length}; set train.steps=... to change; {batches}")
    for line in dict.fromkeys([*(f"note: {line}" for line in logged), *notes(run)]):
        say(line)


def attention_lines(train_plan: TrainPlan) -> Iterator[str]:
    """Yields a line on GPUs and TPUs: whether a traced step has fused attention, and the reasons if it has not."""
    if train_plan.platform == "cpu":
        return
    with seen_reasons() as reasons:  # compilation reuses the trace
        train_plan.train_step.trace(train_plan.state, abstract_batch(train_plan.largest_batch, train_plan.mesh))
    if reasons == {""}:
        yield f"attention: fused by {'cuDNN' if train_plan.platform == 'gpu' else 'a Pallas kernel'}"
    for reason in sorted(reasons - {""}):
        yield f"attention: plain{' in part' * (len(reasons) > 1)}, since {reason}"


def notes(run: Run) -> Iterator[str]:
    """Yields a line for each part of the data, the model and the settings that the run leaves out or changes."""
    model, pairs = run.model, run.stream.pairs
    settings, data = model.settings, model.settings.data
    few = run.training.counts.questions < FEW and not run.data.validation.questions
    if few and data.validation_fraction + data.test_fraction:
        yield f"note: with fewer than {FEW} questions none is held out; set data.test_path to measure the model"
    if alike := sum(len(part.own_texts) for part in vars(run.data).values()):
        yield (
            f"note: {alike:,} questions are answers of other pairs too: their own text is neither a negative "
            "nor a candidate, and both directions of a pair are in one split"
        )
    if (wrong := np.count_nonzero(np.diff(pairs.hard_negatives.offsets))) and settings.objective.takes_hard_negatives:
        used = f"{data.hard_negatives} per question in each step" if data.hard_negatives else "none is used"
        yield f"note: the data has hard negatives of {counted(int(wrong), 'question')}: {used} (data.hard_negatives)"
    for side, table in (("question", pairs.questions), ("answer", pairs.answers)):
        if cut := getattr(table, "cut", 0):
            limit = f"{getattr(data, f'{side}_length')} tokens (data.{side}_length)"
            yield f"note: {cut:,} of {len(table):,} {side}s are cut to {limit}"
        source, flag = model.sources[side], f"{side}_prompt"
        prompt = source.usage.prompt(side)
        if prompt and prompt != getattr(settings.model, flag) and not settings.model.encoder:
            yield f"note: the prompt {prompt!r} of {source.folder} is not used; set model.{flag} to use it"
    tokenizer = model.processors["answer"].tokenizer
    yield from tokenizer.describe_unfit(run.data.train.candidates, settings.model.pretrained)
    configured, warmup = settings.optimizer.warmup_steps, settings.optimizer.fitted(run.steps).warmup_steps
    if 0 <= configured != warmup:
        length = f"is too long for {run.steps} steps; it is reduced to {warmup}"
        yield f"warning: optimizer.warmup_steps={configured} {length}"
    tower, begins = model.dual_encoder.answer, not (run.workdir / workdirs.CONFIG).exists()
    gains = model.platform == "cpu" and tower.product_dtype == FLOAT32 and hasattr(tower.encoder, "config")
    if begins and gains and multiplies_bfloat16():
        yield "note: this CPU multiplies bfloat16 about twice as fast: model.product_dtype=bfloat16"
    if tower.product_dtype == BFLOAT16:
        yield "note: linear layers multiply in bfloat16; model.product_dtype=float32 turns this off"
    if drawback := model.dual_encoder.sharing.drawback:
        yield f"warning: model.sharing={settings.model.sharing}: {drawback}"


def _describe_batches(plan: PackingPlan | None, vectors: bool) -> str:
    if vectors:
        return "of vectors that are computed once"
    if plan is None:
        return "padded to the longest text"
    chunks = "at once" if plan.chunks == 1 else f"in {plan.chunks} chunks"
    return f"encoded {chunks}, {plan.overhead:.2f} computed tokens per real token"


def _parameter_counts(model: Model) -> str:
    """Formats the numbers of all, shared, single-tower, method and frozen parameters."""

    def count(tree) -> int:
        return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))

    params = model.abstract_params
    _, frozen = split_frozen(params, model.frozen)
    parts = {name: count(params["dual_encoder"].get(name, {})) for name in ("shared", *SIDES)}
    parts |= {name: count(tree) for name, tree in params.items() if name != "dual_encoder"}
    counts = ", ".join(f"{value:,} {name}" for name, value in {**parts, "frozen": count(frozen)}.items())
    return f"{count(params):,} ({counts})"
