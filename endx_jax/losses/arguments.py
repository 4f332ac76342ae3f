"""Options of the losses over a batch, and checks of their arguments."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from endx_jax.batch import TokenVectors
from endx_jax.checks import check_arrays
from endx_jax.errors import EndxError
from endx_jax.settings import check_choice

Array = jax.Array


class Arrays(NamedTuple):
    """Arrays of a loss over a batch, by their names as arguments of `in_batch_softmax`."""

    question: Array | TokenVectors
    answer: Array | TokenVectors
    hard_negatives: Array | TokenVectors | None
    question_id: Array | None
    answer_id: Array | None
    positive_ids: Array | None
    hard_negative_ids: Array | None
    where: Array | None


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
      >>> options = losses.Options(prefixes=losses.Prefixes((1, 2), weights=(1, 2)))
      >>> loss, metrics = losses.in_batch_softmax(vectors, vectors, options=options)
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
      >>> options = losses.Options(guide=losses.Guide(alike, alike))
      >>> _, metrics = losses.in_batch_softmax(vectors, vectors, options=options)
      >>> print(metrics["masked_fraction"])  # the guide scores the second answer above the first question's own
      0.5
    """

    question: Array
    answer: Array
    hard_negatives: Array | None = None


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of `in_batch_softmax` and `in_batch_sigmoid`, which apply to all terms of `losses.pair_scores`.

    Attributes:
      prefixes: prefixes of the embeddings whose weighted losses are added (Matryoshka); None for the whole embeddings.
      same_side: `questions`, `answers` or both: each pair's sums get the scores of its question with the other
        questions, or of its answer with the other answers (GTE; Qwen3-Embedding has both). Pairs of which one answer is
        known to be right for the other question are excluded.
      ceiling: limit of wrong scores; those above it are excluded as false negatives, for each prefix by its own scores.
      guide: embeddings of the same texts by another model, which excludes false negatives likewise.
      guide_ceiling: limit of the guide's wrong scores; by default its right score.
      log_q: [B], logarithm of each answer's probability of being drawn, which the softmax subtracts from its logits (Yi
        et al. 2019, section 4.1), so that frequent answers are not penalised as negatives. It may be relative to the
        mean, as hard negatives and questions are not corrected.

    Examples:
      >>> question = answer = jnp.array([[1.0, 0.0], [0.0, 1.0]])
      >>> options = losses.Options(ceiling=losses.Ceiling(margin=-2.0))
      >>> print(losses.in_batch_softmax(question, answer, options=options)[1]["masked_fraction"])
      1.0
    """

    prefixes: Prefixes | None = None
    same_side: Sequence[str] = ()
    ceiling: Ceiling | None = None
    guide: Guide | None = None
    guide_ceiling: Ceiling = Ceiling()
    log_q: Array | None = None

    def __post_init__(self):
        for name in self.same_side:
            check_choice("same_side", name, SAME_SIDE)


def check_batch(shapes: Mapping[str, str] = SHAPES, **arrays: Array | None) -> None:
    """Checks the arguments of a loss against `shapes`, and that the arrays to which ids refer are given."""
    check_arrays({name: (array, shapes[name]) for name, array in arrays.items()})
    if arrays.get("positive_ids") is not None and arrays["answer_id"] is None:
        raise EndxError("positive_ids is given without answer_id, whose ids it refers to: set answer_id too")
    if arrays.get("hard_negative_ids") is not None and arrays["hard_negatives"] is None:
        raise EndxError("hard_negative_ids is given without hard_negatives: set hard_negatives too")


def check_in_batch(arrays: Arrays, options: Options) -> None:
    """Checks the arrays of a loss over a batch, and its options with them, as `check_batch` does."""
    given, shapes = {**arrays._asdict(), "log_q": options.log_q}, {**SHAPES, "log_q": "[B]"}
    for name, shape in OF_TOKENS.items() if isinstance(arrays.question, TokenVectors) else ():
        values, mask = (getattr(given[name], part, given[name]) for part in ("values", "mask"))
        given |= {name: values, f"mask of {name}": mask}
        shapes |= {name: shape, f"mask of {name}": f"bool {shape.removesuffix(', E]')}]"}
    for name, array in options.guide._asdict().items() if options.guide else ():
        given[f"guide.{name}"], shapes[f"guide.{name}"] = array, SHAPES[name].replace("E", "G")
    check_batch(shapes, **given)
    if options.guide and options.guide.hard_negatives is None and arrays.hard_negatives is not None:
        raise EndxError("guide has no hard_negatives, but the batch has: set guide.hard_negatives too")
    if options.prefixes is None:
        return
    if isinstance(arrays.question, TokenVectors):
        raise EndxError("prefixes are those of one embedding of each text: for embeddings of tokens set prefixes=None")
    longest, width = options.prefixes.widths[-1], arrays.question.shape[1]
    if longest > width:
        raise EndxError(f"the longest prefix has width {longest}; the embeddings have {width}")
