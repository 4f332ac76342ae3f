"""Dual encoder: two towers with one parameter tree."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import flax.traverse_util
import jax
import jax.numpy as jnp

from endx_jax.batch import Packing, Texts, Tokens
from endx_jax.errors import EndxError
from endx_jax.models.lora import is_linear
from endx_jax.models.products import BFLOAT16
from endx_jax.models.sharing import SHARINGS, Sharing
from endx_jax.models.tower import Tower

Array = jax.Array

SIDES = ("question", "answer")
# Names of the sides in prompts, in requests and in other libraries.
TASKS = {"question": "query", "answer": "document"}
SIDE_OF_TASK = {task: side for side, task in TASKS.items()}


@dataclasses.dataclass(frozen=True)
class DualEncoder:
    """Question tower and answer tower as pure functions of their parameters (Dong et al. 2022, section 3).

    Parameters are a tree of groups: `shared` holds the groups that both towers use, `question` and `answer` those of
    one tower. A shared array is stored once, so its gradient is the sum over both towers.

    Attributes:
      question: question tower.
      answer: answer tower; shared groups must have the same shapes in both towers.
      sharing: the shared groups; by default all of them (Siamese dual encoder).

    Examples:
      >>> from endx_jax.batch import Tokens
      >>> from endx_jax.models import DualEncoder, TokenEmbedder, Tower
      >>> from endx_jax.models.static import NoEncoder
      >>> tower = Tower(TokenEmbedder(vocab_size=4, width=4), NoEncoder(), normalize=False)
      >>> params = {"shared": {"token_embedder": {"embedding": jnp.eye(4)}}}
      >>> tokens = Tokens(ids=jnp.array([[1, 3, 0]]), mask=jnp.array([[True, True, False]]))
      >>> print(DualEncoder(tower, tower).encode(params, "question", tokens))  # the mean of the rows of tokens 1 and 3
      [[0.  0.5 0.  0.5]]
    """

    question: Tower
    answer: Tower
    sharing: Sharing = SHARINGS["sde"]

    def init(self, key: Array) -> dict:
        """Draws new parameters; can be used under `jax.eval_shape`."""
        tokens = Tokens(ids=jnp.zeros((1, 2), jnp.int32), mask=jnp.ones((1, 2), bool))
        keys = dict(zip(SIDES, jax.random.split(key), strict=True))
        return self.join({side: self.tower(side).init(keys[side], tokens)["params"] for side in SIDES})

    def join(self, towers: dict[str, dict]) -> dict:
        """Joins the parameters of both towers, by side, into one tree; shared groups, alike in both, are there once."""
        shared = {group: params for group, params in towers["question"].items() if group in self.sharing.shared}
        if self.sharing.shared and not shared:
            raise EndxError(
                f"model.sharing shares {' and '.join(sorted(self.sharing.shared))}, which the towers do not have: "
                "set model.projection to a width, or choose another model.sharing"
            )
        for group, params in shared.items():
            if _shapes(params) != _shapes(towers["answer"].get(group, {})):
                raise EndxError(
                    f"model.sharing shares {group}, which differs between model.pretrained and "
                    "model.answer_pretrained: choose a model.sharing that does not share it"
                )
        unshared = {side: {g: p for g, p in towers[side].items() if g not in shared} for side in SIDES}
        return {name: groups for name, groups in {"shared": shared, **unshared}.items() if groups}

    def tower(self, side: str) -> Tower:
        """Returns the tower of one side, `question` or `answer`."""
        return {"question": self.question, "answer": self.answer}[side]

    def tower_params(self, params: dict, side: str) -> dict:
        """Returns the parameters of one side's tower, by group."""
        return params.get("shared", {}) | params.get(side, {})

    def has_one_tower(self, params: dict) -> bool:
        """Returns true if both sides have the same tower and parameters; their `TokenSettings` may differ."""
        question, answer = (self.tower(side).clone(tokens=None) for side in SIDES)
        return question == answer and not params.keys() & {*SIDES}

    def is_siamese(self, params: dict) -> bool:
        """Returns true if both sides have the same tower, parameters and `TokenSettings`."""
        return self.question.tokens == self.answer.tokens and self.has_one_tower(params)

    @property
    def by_token(self) -> bool:
        """True if every token of a text has an embedding."""
        return self.question.tokens is not None

    def encoding_params(self, params: dict, side: str) -> dict:
        """Returns one side's parameters as a shared tree, with kernels rounded to bfloat16 if its products are."""
        tower = self.tower_params(params, side)
        if self.tower(side).product_dtype == BFLOAT16:
            leaves = flax.traverse_util.flatten_dict(tower, keep_empty_nodes=True, sep="/")
            rounded = {path: leaf.astype(jnp.bfloat16) for path, leaf in leaves.items() if is_linear(path)}
            tower = flax.traverse_util.unflatten_dict(leaves | rounded, sep="/")
        return {"shared": tower}

    def encode(self, params: dict, side: str, texts: Texts, dropout_keys: Array | None = None) -> Any:
        """Embeds texts of one side, `question` or `answer`; float32 [B, E], or `TokenVectors` if `by_token`."""
        return self._apply(Tower.__call__, params, side, texts, dropout_keys)

    def of_sides(
        self,
        function: Callable[[dict, str, Any, Array | None], Any],
        params: dict,
        sides: Sequence[tuple[str, Any, Array | None]],
        packing: Packing | None,
    ) -> list:
        """Applies `encode`, `pool` or `encodings` to the texts of several sides, in one pass if the model is Siamese.

        Args:
          function: the method to apply.
          params: parameters of both towers.
          sides: side, texts and dropout keys of each result; all keys or none are None.
          packing: `Batch.packing`; None applies the function to each side by itself.

        Returns:
          What the function returns for each side.
        """
        if packing is None or not self.is_siamese(params):
            return [function(params, *side) for side in sides]
        _, texts, keys = zip(*sides, strict=True)
        width = max(tokens.ids.shape[1] for tokens in texts)
        ids, mask = (
            jnp.concatenate([jnp.pad(x, ((0, 0), (0, width - x.shape[1]))) for x in arrays])
            for arrays in ([tokens.ids for tokens in texts], [tokens.mask for tokens in texts])
        )
        dropout_keys = None if keys[0] is None else jnp.concatenate(keys)
        together = function(params, SIDES[0], Tokens(ids, mask, packing), dropout_keys)
        by_token = jax.tree.leaves(together)[0].ndim == 3  # [B, L, W]
        results, start = [], 0
        for tokens in texts:
            end = start + len(tokens.ids)
            cut = (slice(start, end), slice(tokens.ids.shape[1])) if by_token else slice(start, end)
            results.append(jax.tree.map(lambda x: x[cut], together))  # noqa: B023
            start = end
        return results

    def base(self, params: dict, side: str, tokens: Tokens) -> Array:
        """Computes the input [B, E] of one side's head for tokens [B, L], without dropout; see `Tower.base`."""
        return self._apply(Tower.base, params, side, tokens)

    def pool(self, params: dict, side: str, tokens: Tokens, dropout_keys: Array | None = None) -> Array:
        """Returns the input [B, P] of one side's projection for tokens [B, L]."""
        return self._apply(Tower.pool, params, side, tokens, dropout_keys)

    def project(self, params: dict, side: str, pooled: Array) -> Array:
        """Maps pooled texts [B, P] of one side to the input [B, E] of its tower's head; see `Tower.project`."""
        return self._apply(Tower.project, params, side, pooled)

    def encodings(self, params: dict, side: str, tokens: Tokens, dropout_keys: Array | None = None) -> Array:
        """Returns the encodings [B, L, W] of one side's tokens before pooling."""
        return self._apply(Tower.encodings, params, side, tokens, dropout_keys)

    def _apply(self, method: Callable, params: dict, side: str, *inputs: Any) -> Any:
        return self.tower(side).apply({"params": self.tower_params(params, side)}, *inputs, method=method)


def _shapes(params: dict) -> dict:
    return jax.tree.map(lambda leaf: leaf.shape, params)
