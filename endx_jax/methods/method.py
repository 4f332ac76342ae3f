"""The `Method` description: everything that the rest of the library needs to know about a training method."""

import dataclasses
import functools
import importlib
from collections.abc import Callable, Mapping
from typing import Any, Self

import flax.linen as nn
from jax.sharding import Mesh

from endx_jax import json_files
from endx_jax.data.batches.collator import Collator
from endx_jax.data.batches.token_tables import Counts, Pairs
from endx_jax.data.sets.records import RetrievalSet
from endx_jax.errors import EndxError, nearest
from endx_jax.methods.evaluation import Evaluator, evaluate_embeddings
from endx_jax.models.heads import HEADS
from endx_jax.models.token_embeddings import TOKENS
from endx_jax.parallel.sharding import Rule, add_rules
from endx_jax.settings import from_mapping, require


class MethodSettings:
    """Base of the settings of a training method, `config.objective`: what a run asks of every method.

    A method whose loss compares the rows of a batch declares `loss_tile` as a field, and one that trains prefixes of
    embeddings `matryoshka_dims`; the values here are those of methods without them.

    Attributes:
      name: name of the method.
      loss_tile: rows of scores in memory at a time; 0: all; -1: automatic.
      matryoshka_dims: widths of the prefixes of embeddings that are trained, and ranked in the report.
      needs_answers: false if texts alone are enough (`data.format=documents`), as none are compared with each other.
    """

    name: str
    loss_tile = 0
    matryoshka_dims = tuple[int, ...]()
    needs_answers = True

    def check_model(self, model: Any) -> None:
        """Raises EndxError unless the method can train towers with the settings `config.model`."""
        require(
            model.pooling != TOKENS,
            f"objective.name={self.name} trains no embedding for each token: set model.pooling to another than "
            f"{TOKENS}",
        )

    def fitted(self, counts: Counts) -> Self:
        """Returns the settings with the values that depend on the training data."""
        del counts
        return self

    @property
    def takes_hard_negatives(self) -> bool:
        """True if data with hard negatives is trained with them by default."""
        return False

    @property
    def given_model(self) -> str:
        """Name of the model whose embeddings of the training texts are in the batches; empty for none."""
        return ""

    def score_arrays(self, hard_negatives: int) -> int:
        """Returns the number of arrays of scores [B, B] of the dense loss with K hard negatives a question."""
        del hard_negatives
        return 1


def plain_collator(pairs: Pairs, settings: Any, hard_negatives: int) -> Collator:
    """Returns the collator of batches without further arrays, those of most methods."""
    del settings, hard_negatives
    return Collator(pairs)


@dataclasses.dataclass(frozen=True)
class Method:
    """Description of a training method.

    Attributes:
      name: `objective.name` in configs.
      settings: the dataclass of `config.objective`, a `MethodSettings` whose fields are declared with `settings.key`;
        one is `name`.
      objective: (dual encoder, settings) to an `Objective`.
      collator: (pairs, settings, K hard negatives a question) to the `Collator` of the run's batches.
      annotate: (pairs, their retrieval set, settings of the run, mesh) to the pairs with what the collator needs beside
        texts; the field is None if it needs nothing. Without a retrieval set only the shapes of the result matter.
      evaluator: (objective, text encoder, mesh, evaluation settings) to an `Evaluator`.
      head: (settings, side, width E) to the Flax module that ends that side's tower, called with ([B, E], dropout keys
        [B] or None) and returning [B, E], or to None for a side without. Heads are trained alone, and everything below
        them is computed once. The field is None for methods that add nothing to towers. A run's model folder names a
        method with heads, which `models.heads.HEADS` makes.
      sharding: rules for parameters that `parallel.sharding.RULES` has no rule for.
      warnings: (the metrics of a logged step) to warnings by name; each is printed once until it is resolved.
      pair_scorer: (objective, processors, mesh, batch size) to a scorer of question-answer pairs. None for methods that
        embed texts; only their models can be loaded, indexed, exported and served.

    Examples:
      >>> from endx_jax.methods import Method, find_method, register
      >>> dual = find_method("dual")
      >>> register(Method("mine", dual.settings, dual.objective))
      >>> find_method("mine").embeds
      True
    """

    name: str
    settings: type[MethodSettings]
    objective: Callable[[Any, Any], Any]
    collator: Callable[..., Collator] = plain_collator
    annotate: Callable[[Pairs, RetrievalSet | None, Any, Mesh], Pairs] | None = None
    evaluator: Callable[..., Evaluator] = evaluate_embeddings
    head: Callable[[Any, str, int], nn.Module | None] | None = None
    sharding: tuple[Rule, ...] = ()
    warnings: Callable[[Mapping[str, float]], Mapping[str, str]] = lambda metrics: {}
    pair_scorer: Callable[..., Any] | None = None

    def __post_init__(self):
        add_rules(self.sharding)  # here, since parameters of a method are also loaded without `find_method`

    @property
    def embeds(self) -> bool:
        """True if the method embeds questions and answers independently."""
        return self.pair_scorer is None

    @property
    def frozen_towers(self) -> bool:
        """True if the method trains heads alone."""
        return self.head is not None


# To add a method, map its name to the module that defines `METHOD`, or to the `Method` itself.
METHODS: dict[str, str | Method] = {
    "dual": "endx_jax.methods.dual",
    "embedding_distillation": "endx_jax.methods.embedding_distillation",
    "endx": "endx_jax.methods.endx",
    "late": "endx_jax.methods.late",
    "matching": "endx_jax.methods.vae.matching",
    "pair": "endx_jax.methods.pair",
    "residual": "endx_jax.methods.residual",
    "vae": "endx_jax.methods.vae",
}
"""Known methods by name."""


def find_method(name: str) -> Method:
    """Returns the method with a given name.

    Raises:
      EndxError: the name is unknown; the message names the nearest known one.
    """
    if name not in METHODS:
        choices = f"{', '.join(METHODS)}{nearest(name, METHODS)}"
        raise EndxError(
            f"objective.name is {json_files.shown(name)}, which is none of {choices}; to use your own method, define "
            "it as METHOD in the config file"
        )
    entry = METHODS[name]
    return importlib.import_module(entry).METHOD if isinstance(entry, str) else entry


def register(method: Method) -> None:
    """Adds a user's method to `METHODS`, and its heads to `models.heads.HEADS`, in this process.

    Raises:
      EndxError: it is no `Method`, or a method of the package has this name.
    """
    if not isinstance(method, Method):
        raise EndxError(f"METHOD in the config file is {json_files.shown(method)}; it must be a Method")
    if not issubclass(method.settings, MethodSettings):
        raise EndxError(f"the settings of METHOD, {method.settings.__name__}, must inherit from MethodSettings")
    if isinstance(METHODS.get(method.name), str):
        raise EndxError(f"the name of METHOD, {method.name!r}, is taken by a method of endx_jax: choose another name")
    METHODS[method.name] = method
    if head := method.head:
        HEADS[method.name] = lambda stored, where: functools.partial(head, from_mapping(method.settings, stored, where))
