"""A figure: how its numbers are found, how they are drawn, and the three files that it becomes."""

import dataclasses
import json
import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import endx_jax
from endx_jax.analysis import style
from endx_jax.analysis.study import Study
from endx_jax.errors import EndxError
from endx_jax.files import write_text

if TYPE_CHECKING:
    import matplotlib.figure


@dataclasses.dataclass(frozen=True)
class Figure:
    """One kind of figure.

    Attributes:
      about: what it shows, in a line.
      options: a dataclass of settings, each declared with `settings.key`; all are numbers or strings.
      data: (study, options) to plain values, as JSON holds them: all that is drawn.
      draw: those values to a Matplotlib figure.
    """

    about: str
    options: type
    data: Callable[[Study, Any], dict]
    draw: "Callable[[dict], matplotlib.figure.Figure]"


def make(name: str, figure: Figure, study: Study, options: Any, target: pathlib.Path) -> dict:
    """Finds a figure's numbers, writes them, and draws what was written.

    Args:
      name: of the figure, kept in the file.
      figure: itself.
      study: the models and texts that it is made from.
      options: of the type that the figure has.
      target: `target.json`, `target.png` and `target.svg` are written.

    Returns:
      The numbers.

    Raises:
      EndxError: for what the user can mend: a missing package, runs or texts that the figure cannot be made from.
    """
    style.require()
    about = {
        "figure": name,
        "endx_jax": endx_jax.__version__,
        "sources": [[source.name, source.place] for source in study.sources],
        "options": dataclasses.asdict(options),
    }
    text = json.dumps(about | {"data": figure.data(study, options)}, ensure_ascii=False) + "\n"
    write_text(_with(target, ".json"), text)
    data = json.loads(text)["data"]
    _save(figure, data, target)
    return data


def redraw(figures: dict[str, Figure], file: pathlib.Path, target: pathlib.Path) -> str:
    """Draws the figure whose numbers a JSON file of `make` holds, as `target.png` and `target.svg`; returns its name.

    Raises:
      EndxError: the file is not there, or no figure's.
    """
    style.require()
    try:
        held = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as failure:
        raise EndxError(f"{file} can't be read as the numbers of a figure: {failure}") from None
    if not isinstance(held, dict) or held.get("figure") not in figures or "data" not in held:
        raise EndxError(f"{file} holds the numbers of no figure; give a .json file that endx analyse wrote")
    _save(figures[held["figure"]], held["data"], target)
    return held["figure"]


def _save(figure: Figure, data: dict, target: pathlib.Path) -> None:
    with style.applied():
        drawn = figure.draw(data)
        style.save(drawn, _with(target, ".png"))
        style.save(drawn, _with(target, ".svg"))


def _with(target: pathlib.Path, ending: str) -> pathlib.Path:
    return target.with_name(target.name + ending)
