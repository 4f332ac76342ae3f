"""Cost estimates for the trained rows of the papers' tables."""

import dataclasses
from collections.abc import Sequence

import jax

from endx_jax.errors import EndxError
from endx_jax.experiment.config import Settings, resolve
from endx_jax.planning.chips import Chip
from endx_jax.planning.plan import OnChip, on_chips
from endx_jax.planning.report import columns, seconds, size
from endx_jax.planning.subject import Texts, read_texts
from reproduction.runs import Options, Plan, plan_of
from reproduction.tables import Row, Table, papers

HEADING = ("row", "runs", "steps", "pairs", "parameters", "peak", "TFLOP a step", "a step", "all of it, hours")


@dataclasses.dataclass(frozen=True)
class Cost:
    """Estimated cost of a row.

    Attributes:
      row: row of a table.
      runs: number of runs, the seeds of the row.
      steps: steps of each run; 0 if unknown without the data.
      found: estimate for one device.
      why: reason why there is no estimate; empty otherwise.
    """

    row: Row
    runs: int = 0
    steps: int = 0
    found: OnChip | None = None
    why: str = ""

    @property
    def cells(self) -> tuple[str, ...]:
        """Cells in the order of `HEADING`; times are rooflines."""
        if self.found is None:
            return (self.row.row, *("",) * (len(HEADING) - 2), self.why)
        work, once = self.found.work, self.found.seconds
        pairs = work.subject.model.settings.train.global_batch_size
        return (
            self.row.row,
            str(self.runs),
            f"{self.steps:,}" if self.steps else "?",
            f"{pairs:,}",
            size(work.parameters),
            size(work.expected),
            f"{work.flops / 1e12:,.3g}",
            seconds(once),
            f"{self.runs * self.steps * once / 3600:,.2g}" if self.steps else "?",
        )


class Costs:
    """Estimator of row costs; rows with equal settings are estimated once."""

    def __init__(self, options: Options, chip: Chip):
        """Initialises the estimator with the data at hand and the chip to estimate for."""
        self._options, self._chip = options, chip
        self._known: dict[str, OnChip] = {}

    def __call__(self, row: Row) -> Cost:
        """Returns the cost of one row."""
        try:
            plan = plan_of(row, self._options)
            if not plan.recipe:
                raise EndxError(row.quoted or "nothing is trained")
            settings = _settings(plan, self._options)
            given = papers().data[plan.data].get("given", plan.data) in self._options.data
            texts = read_texts(settings) if given else Texts(None, "not given")
            return Cost(row, plan.seeds, _steps(settings, texts), self._on_chip(settings, texts))
        except EndxError as reason:
            return Cost(row, why=str(reason))

    def _on_chip(self, settings: Settings, texts: Texts) -> OnChip:
        if texts.pairs is None:  # then it does not matter which they would be
            data = dataclasses.replace(settings.data, path="docstrings", pool="", test_path="", merge=False)
            settings = dataclasses.replace(settings, data=data)
        key = repr(settings)
        if key not in self._known:
            (self._known[key],) = on_chips(settings, texts, [self._chip], jax.devices()[:1])
        return self._known[key]


def text(table: Table, found: Sequence[Cost], chip: Chip) -> str:
    """Formats a table for the terminal."""
    rows = [HEADING, *(cost.cells for cost in found if cost.found)]
    reasons = [f"{cost.row.row}: {cost.why}" for cost in found if cost.why]
    head = f"{table.name}: {table.title}, on one {chip.name}; memory is estimated, times are rooflines"
    return "\n".join([head, *([columns(rows)] if len(rows) > 1 else []), *reasons])


def _settings(plan: Plan, options: Options) -> Settings:
    """Returns the settings of a row's first run; data without a given place use their name as path."""
    names = {about.get("given", name): name for name, about in papers().data.items()}
    return resolve(plan.config(0, dataclasses.replace(options, data={**names, **options.data})))


def _steps(settings: Settings, texts: Texts) -> int:
    if settings.train.steps:
        return settings.train.steps
    return settings.train.total_steps(len(texts.pairs)) if texts.pairs is not None else 0
