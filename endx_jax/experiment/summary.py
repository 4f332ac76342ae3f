"""Summary that is printed before the first step of a run."""

import math
from collections.abc import Iterable, Iterator

import jax
import numpy as np

from endx_jax.data.batches.packing import PackingPlan
from endx_jax.data.sets.splits import FEW
from endx_jax.data.settings import DOCUMENTS
from endx_jax.experiment.model import Model
from endx_jax.experiment.prepare import Run
from endx_jax.experiment.workdir import CONFIG
from endx_jax.models.dual_encoder import SIDES
from endx_jax.models.products import FLOAT32, multiplies_bfloat16
from endx_jax.parallel.console import say
from endx_jax.pretrained.settings import NO_ENCODER
from endx_jax.training.state import split_frozen


def log_summary(run: Run, logged: Iterable[str]) -> None:
    """Prints one line each about data, model, parameters, devices and steps, then the readers' warnings and `notes`."""
    model, steps, stream = run.model, run.steps, run.stream
    settings, devices = model.settings, run.mesh.devices.ravel()
    counts = {name: part.counts.questions for name, part in (vars(run.data) | {"train": run.training}).items()}
    sizes = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    say(f"data: {settings.data.path}, questions: {sizes}")
    if settings.data.format == DOCUMENTS:
        table = "; those of data.test_path are ranked" if settings.data.test_path else ", those held out as well"
        say(f"documents only: the questions are titles, headings and sentences of the passages{table}")
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
    batches = _describe_batches(stream.plan, model.method.frozen_towers)
    warmup = settings.optimizer.fitted(steps).warmup_steps
    length = f"{len(stream.pairs):,} pairs: {steps:,} steps of {settings.train.global_batch_size}, warm-up {warmup}"
    say(f"training: {length}; set train.steps=... to change; {batches}")
    for line in dict.fromkeys([*(f"note: {line}" for line in logged), *notes(run)]):
        say(line)


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
        yield f"note: the data has hard negatives of {wrong:,} questions: {used} (data.hard_negatives)"
    for side, table in (("question", pairs.questions), ("answer", pairs.answers)):
        if cut := getattr(table, "cut", 0):
            limit = f"{getattr(data, f'{side}_length')} tokens (data.{side}_length)"
            yield f"note: {cut:,} of {len(table):,} {side}s are cut to {limit}"
        source, flag = model.sources[side], f"{side}_prompt"
        own = source.usage.prompt(side)
        if own and own != getattr(settings.model, flag) and not settings.model.encoder:
            yield f"note: the prompt {own!r} of {source.folder} is not used; set model.{flag} to use it"
    tokenizer = model.processors["answer"].tokenizer
    yield from tokenizer.describe_unfit(run.data.train.candidates, settings.model.pretrained)
    configured, warmup = settings.optimizer.warmup_steps, settings.optimizer.fitted(run.steps).warmup_steps
    if 0 <= configured != warmup:
        length = f"is too long for {run.steps} steps; it is reduced to {warmup}"
        yield f"warning: optimizer.warmup_steps={configured} {length}"
    tower, begins = model.dual_encoder.answer, not (run.workdir / CONFIG).exists()
    gains = model.platform == "cpu" and tower.product_dtype == FLOAT32 and hasattr(tower.encoder, "config")
    if begins and gains and multiplies_bfloat16():
        yield "note: this CPU multiplies bfloat16 about twice as fast: model.product_dtype=bfloat16"
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
