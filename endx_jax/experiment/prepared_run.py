"""A run that is ready to train: its parts, and the lines that describe it in the log."""

import dataclasses
import functools
import math
from collections.abc import Iterable, Iterator, Mapping

import jax
import numpy as np

from endx_jax.data.batches.packing import PackingPlan
from endx_jax.data.batches.token_store import TokenStore
from endx_jax.data.sets.records import RetrievalSet
from endx_jax.data.sets.splits import FEW, Splits
from endx_jax.errors import counted
from endx_jax.experiment import workdir as workdirs
from endx_jax.experiment.config import Settings
from endx_jax.experiment.model import Model
from endx_jax.experiment.train_plan import TrainPlan
from endx_jax.experiment.workdir import Workdir
from endx_jax.inference.encode import TextEncoder
from endx_jax.inference.head_encoder import HeadEncoder
from endx_jax.methods.evaluation import UNTRAINED
from endx_jax.models.attention import seen_reasons
from endx_jax.models.dual_encoder import SIDES
from endx_jax.models.products import BFLOAT16, FLOAT32, multiplies_bfloat16
from endx_jax.parallel.agreement import check_parameters
from endx_jax.parallel.console import say
from endx_jax.parallel.sharding import put, state_shardings
from endx_jax.pretrained.settings import NO_ENCODER
from endx_jax.pretrained.towers import keeps_projection
from endx_jax.training.compilation import abstract_batch
from endx_jax.training.step import split_frozen

# Settings of the towers that change the embedding of a text, but no shape of a parameter.
OF_EMBEDDINGS = (
    "pooling", "tokens", "layer_weights", "projection_function", "normalize", "question_prompt", "answer_prompt",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Run:
    """A prepared run, whose settings, data and files have been checked.

    Attributes:
      workdir: the run's folder.
      settings: final settings.
      data: train, validation and test sets.
      sets: sets of `evaluation.sets` by name.
      training: training data, the train set or `data.tokens`; its sha256 must not change when the run resumes.
      model: model to train.
      encoder: text encoder for evaluation.
      plan: batches, steps and optimizer.
    """

    workdir: Workdir
    settings: Settings
    data: Splits
    sets: Mapping[str, RetrievalSet]
    training: RetrievalSet | TokenStore
    model: Model
    encoder: TextEncoder | HeadEncoder
    plan: TrainPlan

    @functools.cached_property
    def untrained(self) -> dict:
        """Parameters before training, on the devices; each process must read them."""
        params = put(self.model.initial_params(), state_shardings(self.model.abstract_params, self.plan.mesh))
        check_parameters(params)
        return params


def log_summary(run: Run, logged: Iterable[str]) -> None:
    """Prints one line each about data, model, parameters, devices and steps, then the readers' warnings and `notes`."""
    settings, model, plan = run.settings, run.model, run.plan
    devices = plan.mesh.devices.ravel()
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
    if inherited := model.inherited[0]:
        new = sorted({"/".join(path.split("/")[:3]) for path in model.new_parameters})
        before = ", whose model is the one before training" if inherited.system == UNTRAINED else ""
        say(f"starts from: {settings.model.init_from}{before}; new: {', '.join(new) or 'nothing'}")
    say(f"parameters: {_parameter_counts(model)}")
    say(f"devices: {len(devices)} x {devices[0].device_kind}, in {jax.process_count()} process(es)")
    for line in attention_lines(plan):
        say(line)
    batches = _describe_batches(plan.stream.plan, model.method.frozen_towers)
    warmup = settings.optimizer.fitted(plan.steps).warmup_steps
    length = f"{len(plan.stream.pairs):,} pairs: {plan.steps:,} steps of {plan.global_batch_size}, warm-up {warmup}"
    say(f"training: {length}; set train.steps=... to change; {batches}")
    for line in dict.fromkeys([*(f"note: {line}" for line in logged), *notes(run)]):
        say(line)


def attention_lines(plan: TrainPlan) -> Iterator[str]:
    """Yields a line on GPUs and TPUs: whether a traced step has fused attention, and the reasons if it has not."""
    if plan.platform == "cpu":
        return
    with seen_reasons() as reasons:  # compilation reuses the trace
        plan.train_step.trace(plan.state, abstract_batch(plan.largest_batch, plan.mesh))
    if reasons == {""}:
        yield f"attention: fused by {'cuDNN' if plan.platform == 'gpu' else 'a Pallas kernel'}"
    for reason in sorted(reasons - {""}):
        yield f"attention: plain{' in part' * (len(reasons) > 1)}, since {reason}"


def notes(run: Run) -> Iterator[str]:
    """Yields a line for each part of the data, the model and the settings that the run leaves out or changes."""
    settings, data, model, pairs = run.settings, run.settings.data, run.model, run.plan.stream.pairs
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
        if source.head.projection and not (settings.model.encoder or keeps_projection(settings.model, source)):
            yield (
                f"note: the projection of {source.folder} to {source.head.projection.width} numbers is not used; "
                "model.projection=0 keeps it, with the folder's pooling"
            )
        embeds = model.method.embeds and not settings.model.encoder
        if embeds and source.usage.truncate_dim:
            width = f"truncate_dim={source.usage.truncate_dim}"
            yield f"note: {width} of {source.folder} is not used; give it where you encode or export"
        if embeds and settings.model.normalize and not (source.usage.cosine or source.head.normalize):
            yield (
                f"note: {source.folder} compares embeddings by inner products, and this run by cosines; "
                "model.normalize=False keeps inner products"
            )
    if inherited := model.inherited[0]:
        before = {**(inherited.towers or {}), **{f"{side}_prompt": inherited.sides[side].prompt for side in SIDES}}
        now = settings.as_dict()["model"]
        for name in (name for name in OF_EMBEDDINGS if before.get(name, now[name]) != now[name]):
            yield f"note: model.{name} is {now[name]!r}, and {before[name]!r} in the model of model.init_from"
    if (head := model.sources["answer"].head).token_pooling.factor > 1:
        yield f"note: training does not keep the HierarchicalTokenPooling of {head.encoder}; encode with pool_factor"
    tokenizer = model.processors["answer"].tokenizer
    yield from tokenizer.describe_unfit(run.data.train.candidates, settings.model.pretrained)
    steps = run.plan.steps
    configured, warmup = settings.optimizer.warmup_steps, settings.optimizer.fitted(steps).warmup_steps
    if 0 <= configured != warmup:
        length = f"is too long for {steps} steps; it is reduced to {warmup}"
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
