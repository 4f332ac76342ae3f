"""Summary that is printed before the first step of a run."""

import math
from collections.abc import Mapping

import jax
from jax.sharding import Mesh

from endx_jax.data.batches import BatchStream
from endx_jax.data.packing import PackingPlan
from endx_jax.data.settings import DOCUMENTS
from endx_jax.data.splits import FEW
from endx_jax.experiment.model import Model
from endx_jax.models.dual_encoder import SIDES
from endx_jax.parallel.console import say
from endx_jax.pretrained.settings import NO_ENCODER
from endx_jax.training.state import split_frozen


def log_summary(model: Model, mesh: Mesh, steps: int, questions: Mapping[str, int], stream: BatchStream) -> None:
    """Prints one line each about data, model, parameters, devices and steps, and warnings."""
    settings, devices = model.settings, mesh.devices.ravel()
    sizes = ", ".join(f"{count:,} {name}" for name, count in questions.items())
    say(f"data: {settings.data.path}, questions: {sizes}")
    shares = settings.data.validation_fraction + settings.data.test_fraction
    if shares and questions["train"] < FEW and not questions["validation"]:
        say(f"of fewer than {FEW} questions none is held out, so nothing is measured but with --config.data.test_path")
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
    say(f"model: {towers}, {settings.model.sharing}, {settings.model.pooling} pooling{heads}")
    if settings.model.init_from:
        new = sorted({"/".join(path.split("/")[:3]) for path in model.new_parameters})
        say(f"starts from: {settings.model.init_from}; new: {', '.join(new) or 'nothing'}")
    say(f"parameters: {_parameter_counts(model)}")
    say(f"devices: {len(devices)} x {devices[0].device_kind}, in {jax.process_count()} process(es)")
    batches = _describe_batches(stream.plan, model.method.frozen_towers)
    configured, warmup = settings.optimizer.warmup_steps, settings.optimizer.fitted(steps).warmup_steps
    length = f"{len(stream.pairs):,} pairs: {steps:,} steps of {settings.train.global_batch_size}, warm-up {warmup}"
    say(f"training: {length}; set train.steps=... to change; {batches}")
    if 0 <= configured != warmup:
        say(f"warning: optimizer.warmup_steps={configured} is too long for {steps} steps; it is reduced to {warmup}")
    drawback = model.dual_encoder.sharing.drawback
    if drawback:
        say(f"warning: model.sharing={settings.model.sharing}: {drawback}")


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
