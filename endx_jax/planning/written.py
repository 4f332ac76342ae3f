"""A plan as JSON."""

import dataclasses
import json
import pathlib

from endx_jax.files import write_text
from endx_jax.planning.machine import Machine
from endx_jax.planning.plan import OnChip, Plan


def write(plan: Plan, name: str, file: pathlib.Path) -> None:
    """Writes everything that is known: bytes, FLOP and seconds, of one device and one step."""
    write_text(file, json.dumps(as_dict(plan, name), indent=1) + "\n")


def as_dict(plan: Plan, name: str) -> dict:
    """The plan as plain nested values."""
    subject = plan.shown.subject
    return {
        "run": name,
        "devices": subject.mesh.size,
        "mesh": dict(subject.mesh.shape),
        "texts": "planned by the data" if plan.texts.pairs is not None else plan.texts.why,
        "settings": subject.model.settings.as_dict(),
        "shown": plan.shown.chip.name,
        "chips": {one.chip.name: _on_chip(one) for one in plan.chips},
        "machine": _on_machine(plan.machine) if plan.machine else None,
        "compiled": dataclasses.asdict(plan.compiled) if plan.compiled else None,
        "alternatives": [{"change": one.change, **_on_chip(one.found)} for one in plan.alternatives],
    }


def _on_machine(machine: Machine) -> dict:
    return dataclasses.asdict(machine) | {"peak": machine.peak, "fits": machine.fits}


def _on_chip(one: OnChip) -> dict:
    return {
        "tower_chunk": one.subject.train_plan.execution.tower_chunk,
        "fits": one.fits,
        "memory": dataclasses.asdict(one.estimate.memory),
        "flops": one.estimate.flops,
        "moved": one.estimate.moved,
        "traffic": [dataclasses.asdict(part) for part in one.estimate.traffic],
        "roofline": dataclasses.asdict(one.roofline) | {"seconds": one.roofline.seconds, "bound": one.roofline.bound},
    }
