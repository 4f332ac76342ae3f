"""Options of the losses over a batch, and checks of their arguments.

Three options apply to all terms of `losses.pair_scores`: several prefixes of the embeddings (`Prefixes`), a ceiling for
wrong scores (`Ceiling`), and a ceiling by the scores of another model (`Guide`).
"""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp

from endx_jax.checks import check_arrays
from endx_jax.errors import EndxError

Array = jax.Array

# Shapes of the arguments that several losses share, for error messages.
SHAPES = {
    "question": "[B, E]",
    "answer": "[B, E]",
    "hard_negatives": "[B, K, E]",
    "drawn": "integer [B, K]",
    "question_id": "integer [B]",
    "answer_id": "integer [B]",
    "positive_ids": "integer [B, P]",
    "hard_negative_ids": "integer [B, K]",
    "where": "bool [B]",
}
# Shapes of embeddings of tokens.
OF_TOKENS = {"question": "[B, Q, E]", "answer": "[B, A, E]", "hard_negatives": "[B, K, H, E]"}

# Terms that compare texts of one side, by the side's name.
SAME_SIDE = {"questions": "q|q", "answers": "a|a"}


@dataclasses.dataclass(frozen=True)
class Prefixes:
    """Prefixes of embeddings that are trained together (Matryoshka, Kusupati et al. 2022, arXiv 2205.13147, Eq. 1).

    The loss is the weighted sum of the losses of the prefixes. The products of a prefix are those of the next shorter
    one and of the entries between both, so all prefixes together need no more products than the longest.

    Attributes:
      widths: ascending widths of the prefixes; the whole embedding counts only if its width is among them.
      weights: weight of each prefix's loss; empty for ones (as the paper).
      normalize: scale each prefix to unit norm, for embeddings of unit norm.

    Examples:
      >>> vectors = jnp.array([[1.0, 0.0], [0.0, 1.0]])
      >>> loss, metrics = losses.in_batch_softmax(vectors, vectors, prefixes=losses.Prefixes((1, 2), weights=(1, 2)))
      >>> print(f"{loss:.4f}", *(f"{metrics[f'prefix_loss/{width}']:.4f}" for width in (1, 2)))  # 0.5032 + 2 * 0.3133
      1.1297 0.5032 0.3133
    """

    widths: tuple[int, ...]
    weights: tuple[float, ...] = ()
    normalize: bool = True

    def __post_init__(self):
        if not self.widths or list(self.widths) != sorted({width for width in self.widths if width > 0}):
            raise EndxError(f"widths of prefixes are {self.widths}; they must be positive and ascending")
        if self.weights and len(self.weights) != len(self.widths):
            raise EndxError(f"there are {len(self.weights)} weights of prefixes for {len(self.widths)} widths")


@dataclasses.dataclass(frozen=True)
class Ceiling:
    """Highest score of a negative, given the right score r: r + margin - (1 - share) |r|.

    Wrong scores above it are taken for false negatives and excluded. Qwen3-Embedding (Zhang et al. 2025, arXiv
    2506.05176) has a margin of 0.1; NV-Retriever (Moreira et al. 2024, arXiv 2407.15831) a share of 0.95 and no margin;
    GISTEmbed (Solatorio 2024, arXiv 2402.16829) compares a guide's scores with a share of 1 and no margin.

    Attributes:
      share: share of a positive right score.
      margin: added to it.

    Examples:
      >>> print(f"{losses.Ceiling(share=0.95)(0.8):.2f}", f"{losses.Ceiling(margin=0.1)(0.8):.2f}")
      0.76 0.90
    """

    share: float = 1.0
    margin: float = 0.0

    def __call__(self, right: Array) -> Array:
        """Returns the ceilings of right scores."""
        return jax.lax.stop_gradient(right + self.margin - (1 - self.share) * jnp.abs(right))


class Guide(NamedTuple):
    """Embeddings of the batch by another model, whose inner products show false negatives (GISTEmbed).

    Attributes:
      question: [B, G].
      answer: [B, G].
      hard_negatives: [B, K, G]; None if the batch has none.

    Examples:
      >>> vectors, alike = jnp.array([[1.0, 0.0], [0.0, 1.0]]), jnp.array([[1.0, 0.0], [2.0, 0.0]])
      >>> _, metrics = losses.in_batch_softmax(vectors, vectors, guide=losses.Guide(alike, alike))
      >>> print(metrics["masked_fraction"])  # the guide scores the second answer above the first question's own
      0.5
    """

    question: Array
    answer: Array
    hard_negatives: Array | None = None


class TokenMasks(NamedTuple):
    """Tokens that count of the texts of a batch with an embedding for each token.

    Attributes:
      question: bool [B, L].
      answer: bool [B, L].
      hard_negatives: bool [B, K, L]; None if the batch has none.

    Examples:
      >>> tokens = jnp.array([[[1.0, 0.0], [0.0, 1.0]], [[0.0, 2.0], [0.0, 0.0]]])
      >>> masks = losses.TokenMasks(*[jnp.array([[True, True], [True, False]])] * 2)
      >>> loss, _ = losses.in_batch_softmax(tokens, tokens, token_masks=masks)
      >>> print(f"{loss:.4f}")  # MaxSim 2 and 2 of the first question, 2 and 4 of the second
      0.4100
    """

    question: Array
    answer: Array
    hard_negatives: Array | None = None


def check_batch(shapes: Mapping[str, str] = SHAPES, **arrays: Array | None) -> None:
    """Checks the arguments of a loss against `shapes`.

    Raises:
      EndxError: shapes do not agree, or ids are given without the arrays that they refer to.
    """
    check_arrays({name: (array, shapes[name]) for name, array in arrays.items()})
    if arrays.get("positive_ids") is not None and arrays["answer_id"] is None:
        raise EndxError("positive_ids is given without answer_id, whose ids it refers to: set answer_id too")
    if arrays.get("hard_negative_ids") is not None and arrays["hard_negatives"] is None:
        raise EndxError("hard_negative_ids is given without hard_negatives: set hard_negatives too")


def check_options(arrays, prefixes, same_side, guide, log_q, token_masks, tile, axis_name) -> None:
    """Checks the options of a loss over a batch, and its `arrays` by name; see `in_batch_softmax` for them.

    Raises:
      EndxError: arguments do not agree.
    """
    shapes = SHAPES if token_masks is None else SHAPES | OF_TOKENS
    if axis_name is not None and tile is None:
        raise EndxError("axis_name is given without tile: a loss over several devices is streamed, so set tile too")
    check_batch(shapes, **arrays)
    extra: dict = {name: (arrays[name], shapes[name]) for name in OF_TOKENS}
    if token_masks is not None:
        masks = token_masks._asdict().items()
        extra |= {f"token_masks.{name}": (mask, f"bool {shapes[name][:-4]}]") for name, mask in masks}
        if token_masks.hard_negatives is None and arrays["hard_negatives"] is not None:
            raise EndxError("token_masks has no hard_negatives, but the batch has: set token_masks.hard_negatives too")
        if prefixes is not None:
            raise EndxError("prefixes are those of one embedding of each text: with token_masks set prefixes=None")
    if guide is not None:
        extra |= {
            "guide.question": (guide.question, "[B, G]"),
            "guide.answer": (guide.answer, "[B, G]"),
            "guide.hard_negatives": (guide.hard_negatives, "[B, K, G]"),
        }
        if guide.hard_negatives is None and arrays["hard_negatives"] is not None:
            raise EndxError("guide has no hard_negatives, but the batch has: set guide.hard_negatives too")
    check_arrays(extra | {"log_q": (log_q, "[B]")})
    for name in same_side:
        if name not in SAME_SIDE:
            raise EndxError(f"same_side names {name!r}, which is none of {', '.join(SAME_SIDE)}")
    if prefixes is not None and prefixes.widths[-1] > arrays["question"].shape[1]:
        raise EndxError(
            f"the longest prefix has width {prefixes.widths[-1]}; the embeddings have {arrays['question'].shape[1]}"
        )
