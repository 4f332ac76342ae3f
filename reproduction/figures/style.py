"""Style of figures: a colour-blind-safe palette and byte-reproducible files."""

import contextlib
import importlib.util
import io
import pathlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from endx_jax.errors import EndxError
from endx_jax.files import replacing

if TYPE_CHECKING:
    import matplotlib.figure
    from matplotlib.axes import Axes

# Okabe and Ito 2008, told apart with every common kind of colour vision; without the yellow, which is faint on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
QUESTION, ANSWER, MUTED = COLOURS[0], COLOURS[1], "#9A9A9A"
# Lightness rises evenly, and it is the same to all.
SEQUENTIAL = "cividis"

# Inches: a text column of a page is about 7 wide.
WIDTH = 7.0
DOTS_PER_INCH = 160

_SETTINGS: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # comes with Matplotlib, so that it is there everywhere
    "font.size": 8.5,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": False,
    "axes.axisbelow": True,
    "grid.color": "#E3E3E3",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "svg.hashsalt": "endx_jax",
    "svg.fonttype": "path",
    "figure.dpi": DOTS_PER_INCH,
}


def require() -> None:
    """Raises EndxError unless the packages of the extra `plot` are installed."""
    missing = [name for name in ("matplotlib", "sklearn") if importlib.util.find_spec(name) is None]
    if missing:
        raise EndxError(f"figures need {' and '.join(missing)}: pip install 'endx_jax[plot]'")


@contextlib.contextmanager
def applied() -> Iterator[None]:
    """Applies the style within a block and restores Matplotlib's settings afterwards."""
    import matplotlib

    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **_SETTINGS, "backend": "agg"}):
        yield


def panels(count: int, *, columns: int, height: float, extra: float = 0.0, width: float = WIDTH, **options):
    """Creates axes in a grid.

    Args:
      count: number of axes.
      columns: axes per row.
      height: height of a row, in inches.
      extra: inches below or above all rows, for a legend.
      width: width of the figure, in inches.
      **options: of `Figure.subplots`.

    Returns:
      The figure, and its axes in a list.
    """
    from matplotlib.figure import Figure

    rows = -(-count // columns)
    figure = Figure(figsize=(width, rows * height + extra), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **options).ravel().tolist()
    for unused in axes[count:]:
        unused.set_visible(False)
    return figure, axes[:count]


def look(number: int) -> dict:
    """Returns colour, marker and line style of the n-th model; seven repeat."""
    every = {"color": COLOURS, "marker": MARKERS, "linestyle": LINES}
    return {name: of_all[number % len(COLOURS)] for name, of_all in every.items()}


def bare(axes: "Axes") -> None:
    """Removes the ticks of a projection, whose coordinates have no meaning; keeps a thin frame."""
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set(visible=True, color="#C8C8C8", linewidth=0.7)


def save(figure: "matplotlib.figure.Figure", file: pathlib.Path) -> None:
    """Writes a `.png` of at most 256 colours, or an `.svg`, atomically and without date or version."""
    from PIL import Image

    with replacing(file, "wb") as stream:
        if file.suffix == ".svg":
            figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
        else:
            pixels = io.BytesIO()
            figure.savefig(pixels, format="png", dpi=DOTS_PER_INCH)
            Image.open(pixels).convert("RGB").quantize(256).save(stream, "png", optimize=True)


def metric_name(metric: str) -> str:
    """Returns the label of a metric: MRR for `mrr`, R@5 for `recall@5`."""
    kind, at, cutoff = metric.partition("@")
    names = {"mrr": "MRR", "map": "MAP", "recall": "R", "p": "P", "ndcg": "nDCG"}
    return names.get(kind, kind.replace("_", " ")) + at + cutoff
