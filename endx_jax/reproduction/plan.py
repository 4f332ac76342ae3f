"""How a row is made: what the user has at hand, and the config of each of its runs."""

import dataclasses
import importlib
import pathlib
import re
from collections.abc import Mapping
from typing import Any

from endx_jax.errors import EndxError
from endx_jax.reproduction.table import Form, Row, papers


@dataclasses.dataclass(frozen=True)
class Options:
    """What was asked for, and what is at hand.

    Attributes:
      output: the folder of all runs.
      data: places of data, by name.
      weights: places of pretrained models, by the names that recipes have for them.
      seeds: runs of each row; 0: as many as the paper has, or one of a shortened row.
      budget: minutes for a whole table; 0: every row as the paper has it.
    """

    output: pathlib.Path
    data: Mapping[str, str] = dataclasses.field(default_factory=dict)
    weights: Mapping[str, str] = dataclasses.field(default_factory=dict)
    seeds: int = 0
    budget: float = 0.0

    @property
    def length(self) -> str:
        """What the folders of runs of this length are called."""
        return f"{self.budget:g}-minutes" if self.budget else "full"

    def place_of(self, name: str) -> str:
        """Where the data of this name are.

        Raises:
          EndxError: that has to be said, and was not.
        """
        about = papers().data[name]
        given = about.get("given", name)
        place = self.data.get(given, about.get("path", ""))
        if not place:
            raise EndxError(f"needs --data {given}=PATH")
        return place

    def model(self, name: str) -> str:
        """Where a pretrained model is."""
        return self.weights.get(name, name)


@dataclasses.dataclass(frozen=True)
class Plan:
    """How a row's runs are made.

    Attributes:
      row: whose runs these are: another's, where the row takes them from there.
      recipe: of the package, with its arguments.
      data: by its name.
      set: what is changed in the recipe, by dotted name.
      differs: from the paper's row, in words; empty where it does not.
      folder: of the row's runs.
      seeds: how many.
    """

    row: Row
    recipe: str
    data: str
    set: Mapping[str, Any]
    differs: str
    folder: pathlib.Path
    seeds: int

    def workdir(self, seed: int) -> pathlib.Path:
        """Of one run."""
        return self.folder / f"seed{seed}"

    def config(self, seed: int, options: Options) -> Any:
        """The config of one run.

        Raises:
          EndxError: it is not said where the data are.
        """
        name, _, arguments = self.recipe.partition(":")
        recipe = importlib.import_module(f"endx_jax.recipes.{name}")
        config = recipe.get_config(arguments) if arguments else recipe.get_config()
        config.update_from_flattened_dict({key: _tuples(value) for key, value in self.set.items()})
        config.seed = seed
        config.data.path = options.place_of(self.data)
        if test := papers().data[self.data].get("test"):
            config.data.test_path = options.place_of(test)
        config.model.pretrained = options.model(config.model.pretrained)
        config.evaluation.untrained = self.row.system == "untrained"
        return config


def plan_of(row: Row, options: Options) -> Plan:
    """How a trained row's runs are made, in full or shortened.

    Raises:
      EndxError: with a budget the row has no shortened form.
    """
    if row.of:
        return plan_of(papers().row(row.of), options)
    if not options.budget:
        return Plan(row, row.recipe, row.data, row.set, "", _folder(row, options), options.seeds or row.seeds)
    if "of" in row.short:
        return plan_of(papers().row(row.short["of"]), options)
    form = form_of(row)
    steps = max(1, round(form.steps * options.budget / papers().tables[row.table].minutes))
    changed = {**papers().shorter, **form.set, **row.short.get("set", {}), "train.steps": steps}
    recipe = row.short.get("recipe", form.recipe)
    return Plan(row, recipe, form.data, changed, form.differs, _folder(row, options), options.seeds or 1)


def form_of(row: Row) -> Form:
    """A row's shortened form.

    Raises:
      EndxError: it has none.
    """
    if "form" not in row.short:
        raise EndxError("has no shortened form; run it without --budget")
    return papers().forms[row.short["form"]]


def _folder(row: Row, options: Options) -> pathlib.Path:
    return options.output / row.table / slug(row.row) / options.length


def slug(name: str) -> str:
    """A name as a folder has it."""
    return re.sub(r"[^\w.-]+", "-", name).strip("-")


def _tuples(value: Any) -> Any:
    """Lists as tuples, at every depth: settings hold these."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
