"""Style of figures, colour-blind safe and byte-reproducible, and projections to a plane."""

import importlib.util
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from endx_jax.errors import EndxError, install
from endx_jax.files import replacing

# Okabe and Ito 2008, told apart with every common kind of colour vision; without the yellow, which is faint on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
QUESTION, ANSWER, MUTED = COLOURS[0], COLOURS[1], "#9A9A9A"
WIDTH = 7.0  # inches, of a text column
MEASURES = {"mrr": "MRR", "recall@5": "R@5"}

_SETTINGS: dict[Any, Any] = {
    "backend": "agg",
    "font.family": "DejaVu Sans",  # comes with Matplotlib, so that it is there everywhere
    "font.size": 8.5,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "#E3E3E3",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "savefig.dpi": 160,
    "svg.hashsalt": "endx_jax",
}


def save(draw: Callable[[dict], Any], data: dict, target: pathlib.Path) -> None:
    """Draws a figure's numbers as `target.png` and `target.svg`, without date or version.

    Raises:
      EndxError: a package of the extra `plot` is missing.
    """
    missing = [name for name in ("matplotlib", "sklearn") if importlib.util.find_spec(name) is None]
    if missing:
        raise EndxError(f"figures need {' and '.join(missing)}: {install('plot')}")
    import cycler
    import matplotlib

    cycle = cycler.cycler(color=COLOURS, marker=MARKERS, linestyle=LINES)
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **_SETTINGS, "axes.prop_cycle": cycle}):
        figure = draw(data)
        for ending, metadata in (("png", {"Software": None}), ("svg", {"Date": None, "Creator": None})):
            with replacing(target.with_name(f"{target.name}.{ending}"), "wb") as stream:
                figure.savefig(stream, format=ending, metadata=metadata)


def panels(count: int, *, columns: int, height: float, width: float = WIDTH, **options):
    """Creates a figure, and its axes in a list.

    Args:
      count: number of axes.
      columns: axes per row.
      height: height of a row, in inches.
      width: width of the figure, in inches.
      **options: of `Figure.subplots`.
    """
    from matplotlib.figure import Figure

    rows = -(-count // columns)
    figure = Figure(figsize=(width, rows * height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **options).ravel().tolist()
    for unused in axes[count:]:
        unused.set_visible(False)
    return figure, axes[:count]


def legend(figure, axis, columns: int, **options) -> None:
    """Puts the legend of an axis below the figure."""
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=columns, **options)


def projection(axis, title: str, label: str) -> None:
    """Frames a panel of t-SNE, whose coordinates have no meaning."""
    axis.set(title=title, xticks=[], yticks=[], xlim=(-1.06, 1.06), ylim=(-1.06, 1.06), box_aspect=1)
    axis.set_xlabel(label, fontsize=8)
    for spine in axis.spines.values():
        spine.set(visible=True, color="#C8C8C8", linewidth=0.7)


def tsne(rows: np.ndarray, *, perplexity: float) -> np.ndarray:
    """Projects rows by t-SNE (Van der Maaten and Hinton 2008), initialised by principal components.

    Args:
      rows: [N, E]; distances are Euclidean, which order unit vectors as cosines do.
      perplexity: approximate number of neighbours; at most (N - 1) / 3.

    Returns:
      float64 [N, 2], centred and with the farthest coordinate at 1; scale and direction have no meaning.
    """
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    perplexity = min(perplexity, (len(rows) - 1) / 3)
    made = TSNE(2, perplexity=perplexity, init="pca", learning_rate="auto", random_state=0, n_jobs=1)
    # The number of threads shows in the last digits.
    with threadpool_limits(1):
        places = made.fit_transform(np.asarray(rows, np.float64))
    places = places - (places.max(axis=0) + places.min(axis=0)) / 2
    return places / (np.abs(places).max() or 1.0)


def rounded(values: npt.ArrayLike) -> list:
    """Returns numbers as nested lists for JSON, with four digits after the point."""
    return np.round(np.asarray(values, np.float64), 4).tolist()
