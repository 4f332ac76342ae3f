"""Kind of figure: its numbers, its drawing and its files."""

import dataclasses
import json
import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

import endx_jax
from endx_jax.files import write_text
from endx_jax.numerics import unit_rows
from reproduction.figures import style
from reproduction.figures.study import Study

if TYPE_CHECKING:
    import matplotlib.figure


@dataclasses.dataclass(frozen=True)
class Figure:
    """One kind of figure.

    Attributes:
      about: one-line description.
      data: study to all values that are drawn, as JSON values.
      draw: function from those values to a Matplotlib figure.
      seeds: true if it draws all seeds of a row, as runs of one name.
    """

    about: str
    data: Callable[[Study], dict]
    draw: "Callable[[dict], matplotlib.figure.Figure]"
    seeds: bool = False


def make(name: str, figure: Figure, study: Study, target: pathlib.Path) -> dict:
    """Computes a figure's numbers, writes them as JSON, and draws them.

    Args:
      name: name of the figure, stored in the file.
      figure: the kind of figure.
      study: its models and texts.
      target: `target.json`, `target.png` and `target.svg` are written.

    Returns:
      The numbers.

    Raises:
      EndxError: a package is missing, or the runs or texts do not suit the figure.
    """
    style.require()
    about = {
        "figure": name,
        "endx_jax": endx_jax.__version__,
        "sources": [[source.name, source.place] for source in study.sources],
    }
    text = json.dumps(about | {"data": figure.data(study)}, ensure_ascii=False) + "\n"
    write_text(_with(target, ".json"), text)
    data = json.loads(text)["data"]
    save(figure, data, target)
    return data


def save(figure: Figure, data: dict, target: pathlib.Path) -> None:
    """Draws a figure's numbers as `target.png` and `target.svg`."""
    with style.applied():
        drawn = figure.draw(data)
        style.save(drawn, _with(target, ".png"))
        style.save(drawn, _with(target, ".svg"))


def _with(target: pathlib.Path, ending: str) -> pathlib.Path:
    return target.with_name(target.name + ending)


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
    # One thread: threads that wait for each other a thousand times over are very slow on a busy machine, and their
    # number would show in the last digits.
    with threadpool_limits(1):
        places = made.fit_transform(np.asarray(rows, np.float64))
    places = places - (places.max(axis=0) + places.min(axis=0)) / 2
    return places / (np.abs(places).max() or 1.0)


def svd(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Projects unit rows on their first two singular vectors, without centring.

    Signs are chosen so that the mean of each component is not negative.

    Args:
      rows: [N, E], N and E at least 2.

    Returns:
      float64 [N, 2], the rows' coordinates; and float64 [2], the share of the sum of squares in each component.
    """
    left, values, _ = np.linalg.svd(unit_rows(np.asarray(rows, np.float64)), full_matrices=False)
    places = left[:, :2] * values[:2]
    places = places * np.where(places.mean(axis=0) < 0, -1.0, 1.0)
    return places, values[:2] ** 2 / np.sum(values**2)


def rounded(values: npt.ArrayLike, digits: int = 4) -> list:
    """Returns numbers as nested lists for JSON, rounded to `digits` after the point."""
    return np.round(np.asarray(values, np.float64), digits).tolist()
