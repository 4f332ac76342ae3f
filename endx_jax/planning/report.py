"""Plans as text for the terminal, and as JSON."""

import dataclasses
from collections import defaultdict
from collections.abc import Sequence

from endx_jax.planning.chips import USABLE, Chip
from endx_jax.planning.compiled import Compiled
from endx_jax.planning.machine import MeasuredStep
from endx_jax.planning.plan import ChipEstimate, Encoding, Plan
from endx_jax.planning.roofline import LAUNCH, LAUNCHES
from endx_jax.planning.topologies import Topology
from endx_jax.ranking.results import aligned

# Notes on the times of compiled programs, by platform.
NOTES = {
    "tpu": "untested: no TPU has run these programs, and the body of a loop (over layers or chunks) counts once",
    "gpu": f"a bound, with {LAUNCH * 1e6:g} us, assumed, for each launch: five steps measured on an H200 took 1.2 to "
    "1.6 times it",
}


def format_plan(plan: Plan, name: str) -> str:
    """Formats a plan as one page."""
    parts = [_heading(plan, name), _work(plan)]
    if plan.topology is None:
        parts.append(_chips(plan.chips))
    elif plan.compiled:
        parts.append(_compiled(plan, plan.compiled))
    else:
        least = f"step of at least {seconds(plan.chips[0].seconds)} by the data sheet"
        parts.append(f"{least}\nnot compiled for {plan.topology}: {plan.missing}")
    if plan.machine:
        parts.append(_machine(plan.machine))
    return "\n\n".join(parts)


def as_dict(plan: Plan, name: str) -> dict:
    """Returns a plan as nested dictionaries: bytes, FLOP and seconds of one device and one step."""
    train_plan, compiled, machine = plan.chips[0].train_plan, plan.compiled, plan.machine
    return {
        "run": name,
        "devices": train_plan.mesh.size,
        "topology": str(plan.topology) if plan.topology else None,
        "mesh": dict(train_plan.mesh.shape),
        "texts": "planned by the data" if plan.texts.pairs is not None else plan.texts.why,
        "settings": train_plan.settings.as_dict(),
        "chips": {estimate.chip.name: _on_chip(estimate) for estimate in plan.chips},
        "compiled": compiled and _without_text(compiled),
        "missing": plan.missing,
        "machine": machine and dataclasses.asdict(machine) | {"peak": machine.peak, "fits": machine.fits},
    }


def encodings(planned: Sequence[Encoding], name: str, topology: Topology) -> tuple[str, dict]:
    """Returns the encoding of texts of some lengths as text for the terminal, and as nested dictionaries."""
    lines = [f"{name}: texts encoded on {topology}"]
    for case in planned:
        title = f"{case.texts:,} texts of {case.length} tokens"
        lines.append(f"{title}\n{_times(case.compiled, case.model_flops, topology.chip, case.texts * case.length)}")
    parts = [dataclasses.asdict(case) | {"compiled": _without_text(case.compiled)} for case in planned]
    lines.append(NOTES[topology.chip.platform])
    return "\n\n".join(lines), {"run": name, "topology": str(topology), "encoding": parts}


def size(count: float) -> str:
    """Formats a number of bytes."""
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= unit:
            return f"{count / unit:,.{0 if count >= 100 * unit else 1 if count >= 10 * unit else 2}f} {name}"
    return f"{count:.0f} B"


def seconds(duration: float) -> str:
    """Formats a duration, given in seconds."""
    for unit, name in ((3600, "hours"), (60, "minutes")):
        if duration >= 2 * unit:
            return f"{duration / unit:,.{0 if duration >= 10 * unit else 1}f} {name}"
    return f"{duration:.2f} s" if duration >= 1 else f"{1e3 * duration:.{0 if duration >= 0.1 else 1}f} ms"


def columns(rows: Sequence[Sequence[str]], indent: str = "  ") -> str:
    """Aligns rows of cells, the first column to the left and the others to the right."""
    return "\n".join(indent + line for line in aligned(rows))


def _on_chip(estimate: ChipEstimate) -> dict:
    names = ("parameters", "optimizer", "batch", "expected", "model_flops", "seconds")
    return {name: getattr(estimate, name) for name in (*names, "fits")} | estimate.train_plan.choice._asdict()


def _without_text(compiled: Compiled) -> dict:
    return {key: value for key, value in dataclasses.asdict(compiled).items() if key != "text"}


def _heading(plan: Plan, name: str) -> str:
    train_plan = plan.chips[0].train_plan
    settings, execution = train_plan.settings, train_plan.execution
    pairs = settings.train.global_batch_size
    mesh = " x ".join(f"{axis} {count}" for axis, count in train_plan.mesh.shape.items())
    count = f"{train_plan.mesh.size} devices" if train_plan.mesh.size > 1 else "1 device"
    place = f"{plan.topology}, {count}" if plan.topology else count
    chunks = execution.chunks(pairs)
    cut = "encoded at once" if chunks == 1 else f"encoded in {chunks} chunks"
    loss = f"loss by {execution.loss_tile} rows" if execution.loss_tile else "loss of all rows at once"
    model, data = settings.model, settings.data
    longest = f"every question {data.question_length} tokens, every answer {data.answer_length}: {plan.texts.why}"
    texts = longest if plan.texts.pairs is None else f"the largest batch that is planned of {data.path}"
    lines = [
        f"{name}: {pairs:,} pairs a step on {place} ({mesh})",
        f"  towers   {model.pretrained}, {model.sharing}, {execution.dtype}, remat {train_plan.choice.remat}",
        f"  step     {cut}, {loss}, {settings.optimizer.name}",
        f"  texts    {texts}",
    ]
    return "\n".join(lines)


def _work(plan: Plan) -> str:
    work = plan.chips[0]
    rows = [
        ("parameters", size(work.parameters), "exact"),
        ("optimizer state", size(work.optimizer), "exact"),
        ("batch", size(work.batch), "exact"),
    ]
    if plan.missing:
        rows.append(("at the peak", size(work.expected), "estimated from shapes"))
    teraflop = float(f"{work.model_flops / 1e12:.3g}")
    computed = f"each device computes {teraflop:,g} TFLOP of the model in matrix products a step"
    return "\n".join(["each device holds", columns(rows), computed])


def _compiled(plan: Plan, compiled: Compiled) -> str:
    work, chip = plan.chips[0], plan.chips[0].chip
    parts = [("arguments", compiled.arguments), ("temporaries", compiled.temporaries), ("program", compiled.code)]
    rows = [(label, size(value)) for label, value in [*parts, ("peak", compiled.peak)] if value]
    verdict = "it fits" if compiled.fits else "it does NOT fit"
    if compiled.room:
        verdict += f": the compiler lacks {size(compiled.room)}"
    lines = [f"compiled for {plan.topology} in {compiled.seconds:.0f} s", columns(rows)]
    lines[-1] += f", {compiled.peak / chip.memory:.0%} of {size(chip.memory)}: {verdict}"
    if compiled.collectives:
        counts = defaultdict[tuple[str, ...], list[int]](lambda: [0, 0])
        for op in compiled.collectives:
            entry = counts[op.kind, *("yes" if said else "no" for said in (op.loops, op.asynchronous))]
            entry[0] += op.times or 1  # a loop of unknown length counts once
            entry[1] += (op.times or 1) * op.bytes
        table: list[tuple[str, ...]] = [("collectives", "in a loop", "asynchronous", "times", "results")]
        for place, (times, results) in sorted(counts.items(), key=lambda count: -count[1][1]):
            table.append((*place, f"{times:,}", size(results)))
        lines += [columns(table), f"  {size(sum(results for _, results in counts.values()))} received"]
    elif not compiled.room:
        lines.append("  no collectives")
    if not compiled.room:
        lines += ["time of a step", _times(compiled, work.model_flops, chip), NOTES[chip.platform]]
    return "\n".join(lines)


def _times(compiled: Compiled, model_flops: int, chip: Chip, tokens: int = 0) -> str:
    """Formats the time of a program; also the rate of encoding, if it encodes `tokens`."""
    if chip.platform == "tpu":
        at_peak = ("the model's products at the peak rate", seconds(model_flops / chip.flops))
        return columns([at_peak, ("by the compiler's cost analysis", seconds(compiled.estimate))])
    whole = sum(compiled.roofline.values())
    rows = [
        (f"launches of {time / LAUNCH:,.0f} kernels" if kind == LAUNCHES else kind, seconds(time))
        for kind, time in compiled.roofline.items()
    ]
    rows.append(("together", seconds(whole)))
    if tokens:
        rows.append(("tokens a second", f"{tokens / whole:,.0f}"))
    rows.append(("MFU", f"{model_flops / whole / chip.flops:.0%}"))
    return columns(rows)


def _chips(chips: Sequence[ChipEstimate]) -> str:
    rows: list[tuple[str, ...]] = [("chip", "memory", "peak", "fits", "step at least")]
    for plan in chips:
        fits = "yes" if plan.fits else "NO"
        rows.append((plan.chip.name, size(plan.chip.memory), size(plan.expected), fits, seconds(plan.seconds)))
    return (
        f"{columns(rows, indent='')}\n"
        "peaks: estimated from shapes; times: of data sheets, in bfloat16 (T4: float16), which no program reaches\n"
        f"it fits up to {USABLE:.0%} of the memory; with --chip=NAME the step is compiled"
    )


def _machine(machine: MeasuredStep) -> str:
    how = "compiled" if machine.compiled else "estimated"
    time = f"\ntimed here, a step takes {seconds(machine.seconds)}" if machine.seconds else ""
    if machine.seconds and machine.steps:
        whole = seconds(machine.steps * machine.seconds)
        time += f": about {whole} for the {machine.steps:,} steps of the run, without compilation and evaluation"
    return (
        f"this machine ({machine.device}, {machine.dtype}, {machine.tower_chunk} pairs at a time): "
        f"{size(machine.peak)} at the peak of a step, {size(machine.step)} of it the step's ({how}) and "
        f"{size(machine.process)} the process's; {size(machine.free)} are free: "
        f"it {'fits' if machine.fits else 'does NOT fit'}{time}"
    )
