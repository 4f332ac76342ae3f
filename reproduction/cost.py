"""Cost estimates for the trained rows of the papers' tables, on one chip."""

import dataclasses

import jax

from endx_jax.errors import EndxError
from endx_jax.experiment.config import resolve
from endx_jax.planning.chips import Chip
from endx_jax.planning.plan import on_chips
from endx_jax.planning.report import columns, seconds, size
from endx_jax.planning.runs import RunPairs, read_texts
from reproduction.runs import Options, plan_of
from reproduction.tables import Row, Table, papers

HEADING = ("row", "runs", "steps", "pairs", "parameters", "peak", "TFLOP a step", "a step", "all of it, hours")


def text(table: Table, rows: list[Row], options: Options, chip: Chip) -> str:
    """Formats the costs of rows for the terminal; rows without training have a reason in place of a cost."""
    found: list[tuple[str, ...]] = [HEADING]
    reasons = []
    for row in rows:
        try:
            found.append(cells(row, options, chip))
        except EndxError as reason:
            reasons.append(f"{row.row}: {reason}")
    head = f"{table.name}: {table.title}, on one {chip.name}; memory is estimated, times are rooflines"
    return "\n".join([head, *([columns(found)] if len(found) > 1 else []), *reasons])


def cells(row: Row, options: Options, chip: Chip) -> tuple[str, ...]:
    """Returns a row's cells, in the order of `HEADING`.

    Raises:
      EndxError: nothing is trained, or training would refuse the settings.
    """
    plan = plan_of(row, options)
    if not plan.recipe:
        raise EndxError(row.quoted or "nothing is trained")
    # Data without a given place have their name as path.
    names = {about.get("given", name): name for name, about in papers().data.items()}
    settings = resolve(plan.config(0, dataclasses.replace(options, data={**names, **options.data})))
    given = papers().data[plan.data].get("given", plan.data) in options.data
    texts = read_texts(settings) if given else RunPairs(None, "not given")
    (planned,) = on_chips(settings, texts, [chip], jax.devices()[:1])
    steps, once = settings.train.steps, planned.seconds
    if not steps and texts.pairs is not None:
        steps = settings.train.total_steps(len(texts.pairs))
    return (
        row.row,
        str(plan.seeds),
        f"{steps:,}" if steps else "?",
        f"{planned.train_plan.global_batch_size:,}",
        size(planned.parameters),
        size(planned.expected),
        f"{planned.model_flops / 1e12:,.3g}",
        seconds(once),
        f"{plan.seeds * steps * once / 3600:,.2g}" if steps else "?",
    )
