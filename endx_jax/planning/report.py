"""A plan for the screen."""

from collections.abc import Sequence

from endx_jax.planning.machine import Machine
from endx_jax.planning.plan import Alternative, OnChip, Plan
from endx_jax.planning.roofline import USABLE
from endx_jax.retrieval.tables import aligned

# Collectives of which less is sent in a step are left out of the screen's table.
LITTLE = 0.001


def text(plan: Plan, name: str) -> str:
    """Everything, in a page.

    Args:
      plan: what to show.
      name: of the run.
    """
    shown = plan.shown
    parts = [_heading(plan, name), _memory(plan), _work(shown), _chips(plan.chips)]
    if plan.machine:
        parts.append(_machine(plan.machine))
    if not shown.fits:
        parts.append(_alternatives(plan.alternatives, shown))
    return "\n\n".join(parts)


def size(count: float) -> str:
    """Bytes, in the unit of thousands that suits them."""
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= unit:
            return f"{count / unit:,.{0 if count >= 100 * unit else 1 if count >= 10 * unit else 2}f} {name}"
    return f"{count:.0f} B"


def seconds(duration: float) -> str:
    """A duration in the unit that suits it."""
    return f"{duration:.2f} s" if duration >= 1 else f"{1e3 * duration:.{0 if duration >= 0.1 else 1}f} ms"


def columns(rows: Sequence[Sequence[str]], indent: str = "  ") -> str:
    """Rows of cells, the first column to the left and the others to the right."""
    return "\n".join(indent + line for line in aligned(rows))


def _heading(plan: Plan, name: str) -> str:
    subject = plan.shown.subject
    settings, execution = subject.model.settings, subject.train_plan.execution
    pairs = settings.train.global_batch_size
    mesh = " x ".join(f"{axis} {count}" for axis, count in subject.mesh.shape.items())
    count = f"{subject.mesh.size} devices" if subject.mesh.size > 1 else "1 device"
    chunks = execution.chunks(pairs)
    cut = "encoded at once" if chunks == 1 else f"encoded in {chunks} chunks"
    loss = f"loss in tiles of {execution.loss_tile}" if execution.loss_tile else "dense loss"
    model = settings.model
    data = settings.data
    longest = f"every question {data.question_length} tokens, every answer {data.answer_length}: {plan.texts.why}"
    texts = longest if plan.texts.pairs is None else f"the largest batch that is planned of {data.path}"
    lines = [
        f"{name}: {pairs:,} pairs a step on {count} ({mesh})",
        f"  towers   {model.pretrained}, {model.sharing}, {model.dtype}, remat {model.remat}, {cut}, {loss}",
        f"  texts    {texts}",
    ]
    return "\n".join(lines)


def _memory(plan: Plan) -> str:
    memory = plan.shown.estimate.memory
    rows = [("on each device, at the peak", "", "")]
    for label, value, exact in (
        ("parameters", memory.parameters, True),
        ("optimizer state", memory.optimizer, True),
        ("batch", memory.batch, True),
        ("embeddings", memory.embeddings, True),
        ("activations", memory.activations, False),
        ("gradients", memory.reduced, False),
        ("losses and update", memory.losses, False),
        ("together", memory.peak, False),
    ):
        if value:  # what is not held at the peak is left out
            rows.append((f"  {label}", size(value), "exact" if exact else "estimated"))
    if plan.compiled:
        rows.append(("  together", size(plan.compiled.peak), "compiled"))
    widths = [max(len(row[n]) for row in rows) for n in range(3)]
    return "\n".join(f"{a.ljust(widths[0])}  {b.rjust(widths[1])}  {c}".rstrip() for a, b, c in rows)


def _work(shown: OnChip) -> str:
    work = shown.estimate
    lines = [
        "each device, each step",
        f"  computes   {work.flops / 1e12:,.3g} TFLOP in matrix products, what is computed again included",
        f"  moves      {size(work.moved)} to and from its memory (estimated)",
        f"  sends      {size(sum(one.sent for one in work.traffic))} to other devices (by rule)",
    ]
    whole = sum(one.sent for one in work.traffic)
    largest = [one for one in work.traffic if one.sent > LITTLE * whole]
    if largest:
        rows = [("of", "by", "over", "times", "results", "sent")]
        rows += [
            (one.what, one.kind, "+".join(one.axes), f"{one.times:,}", size(one.bytes), size(one.sent))
            for one in largest
        ]
        lines.append(columns(rows, indent="    "))
    return "\n".join(lines)


def _chips(chips: Sequence[OnChip]) -> str:
    rows = [("chip", "memory", "peak", "fits", "step at least", "bound by", "compute", "memory", "network")]
    for one in chips:
        line = one.roofline
        rows.append(
            (
                one.chip.name,
                size(one.chip.memory),
                size(one.estimate.memory.peak),
                "yes" if one.fits else "NO",
                seconds(line.seconds),
                line.bound,
                seconds(line.compute),
                seconds(line.memory),
                seconds(line.network),
            )
        )
    rooflines = "times are rooflines: data sheets at their best, in bfloat16, which no program reaches"
    return f"{columns(rows, indent='')}\n{rooflines}; it fits up to {USABLE:.0%} of the memory"


def _machine(machine: Machine) -> str:
    how = "compiled" if machine.compiled else "estimated"
    return (
        f"this machine ({machine.device}, {machine.dtype}, {machine.tower_chunk} pairs at a time): "
        f"{size(machine.peak)} at the peak of a step, {size(machine.step)} of it the step's ({how}) and "
        f"{size(machine.process)} the process's; {size(machine.free)} are free: "
        f"it {'fits' if machine.fits else 'does NOT fit'}"
    )


def _alternatives(found: Sequence[Alternative], shown: OnChip) -> str:
    if not found:
        return f"it does not fit {shown.chip.name}; more devices, shorter texts or a smaller batch would help"
    rows = [("change", "peak", "fits", "step at least", "")]
    for one in found:
        change = " ".join(f"--config.{name}={value}" for name, value in one.change.items())
        fits = "yes" if one.found.fits else "no"
        note = "changes what is learned" if one.changes_results else ""
        rows.append((change, size(one.found.estimate.memory.peak), fits, seconds(one.found.roofline.seconds), note))
    return f"what to change, on {shown.chip.name}\n{columns(rows)}"
