"""Loaded model that encodes texts, with methods named as in sentence-transformers."""

import dataclasses
import functools
import inspect
import logging
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import jax
import numpy as np

from endx_jax.errors import EndxError, nearest
from endx_jax.inference.encode import Output, Precision, TextEncoder
from endx_jax.models.dual_encoder import SIDES
from endx_jax.models.tower import Tower
from endx_jax.numerics import Quantized, dequantize, unit_rows
from endx_jax.parallel.console import showing_progress
from endx_jax.pretrained import PretrainedEncoder

Embeddings = np.ndarray | jax.Array | Quantized

PARAMETERS, PROMPTS = "parameters", "prompts"

# Arguments of sentence-transformers' `encode` that are not supported: the default, and what to do instead.
UNSUPPORTED = {
    "convert_to_tensor": (
        False,
        "embeddings are NumPy arrays, or JAX arrays with convert_to_numpy=False; convert one with torch.from_numpy",
    ),
    "device": (None, "a model runs on the devices that JAX finds; set JAX_PLATFORMS to choose, such as cpu"),
    "output_value": ("sentence_embedding", "only embeddings of whole texts are returned"),
    "pool": (None, "one process encodes on all its devices"),
    "chunk_size": (None, "one process encodes on all its devices; batch_size bounds its memory"),
}
LOG = logging.getLogger("endx_jax")


@dataclasses.dataclass(frozen=True)
class Source:
    """Origin of a model, for exports; its towers are `encoder.model.tower(side)`.

    Attributes:
      encoders: by side, the `config.json` of its token table and encoder. In a workdir's model these folders hold no
        weights; the model has the parameters.
      workdir: of the run that trained it; None for a pretrained folder.
    """

    encoders: Mapping[str, PretrainedEncoder]
    workdir: pathlib.Path | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class EmbeddingModel:
    """Encodes questions and documents; arguments are named as in sentence-transformers.

    Attributes:
      name: path or name that was loaded.
      encoder: the towers, and the text processors of each side, `question` and `answer`.
      params: of the towers.
      cosine: true if embeddings are compared by cosine rather than inner product.
      source: origin of the model.
      named_prompts: prompts by the values of `prompt_name`.
      default_prompt: prompt of `encode`.
      truncate_dim: leading dimensions that are kept by default; None keeps all.
    """

    name: str
    encoder: TextEncoder
    params: dict
    cosine: bool
    source: Source
    named_prompts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    default_prompt: str = ""
    truncate_dim: int | None = None

    def __repr__(self) -> str:
        count = sum(leaf.size for leaf in jax.tree.leaves(self.params))
        towers = "two towers" if PARAMETERS in self._differences() else "one tower"
        tower = self.encoder.model.question
        made = [towers]
        if isinstance(tower, Tower):  # an exported program does not tell
            pooling = getattr(tower.pooling, "__name__", type(tower.pooling).__name__)
            made = [f"{towers} of {type(tower.encoder).__name__}", f"{pooling} pooling"]
        compared = "cosine" if self.cosine else "inner product"
        facts = ", ".join([f"{self.width} dimensions", *made, compared, f"{count:,} parameters"])
        return f"EmbeddingModel({self.name!r}, {facts})"

    @functools.cached_property
    def identity(self) -> str:
        """sha256, in hexadecimal, of everything that affects embeddings: see `inference.identity`."""
        return self.encoder.identity(self.params)

    @property
    def width(self) -> int:
        """E, the dimensions of an embedding."""
        return self.encoder.width(self.params, Output(self.truncate_dim))

    @property
    def prompts(self) -> dict[str, str]:
        """Prompts put before every text, by side."""
        return {side: self.encoder.processors[side].prompt for side in SIDES}

    @property
    def asymmetric(self) -> bool:
        """True if the two sides embed a text differently."""
        return bool(self._differences())

    def encode_query(
        self,
        sentences: str | Iterable[str],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        convert_to_numpy: bool = True,
        precision: Precision = "float32",
        **others: object,
    ) -> Embeddings:
        """Encodes questions.

        Longer texts are cut to the side's maximum length, which is logged once per model.

        Args:
          sentences: N texts, or one.
          prompt_name: name of the prompt in `named_prompts` that is put before every text; None: the side's prompt.
          prompt: text that is put before every text; takes precedence over `prompt_name`.
          batch_size: texts of the maximum length encoded together; of shorter ones as many as have the same number of
            padded tokens, and on a CPU fewer where that is faster. Affects speed and memory only.
          show_progress_bar: None shows one at a terminal.
          normalize_embeddings: scales to unit norm, after truncation.
          truncate_dim: number of leading dimensions to keep; None: the model's `truncate_dim`.
          convert_to_numpy: false returns JAX arrays.
          precision: data type to which embeddings are rounded on the device: `float32`, `bfloat16`, `float16` or
            `int8`.
          others: arguments of sentence-transformers that are not supported; only their default values are accepted.

        Returns:
          [N, E] of that precision in the order given; [E] for one text. For `int8` a `Quantized` of codes, int8 [N, E],
          and scales, float32 [N]: row i is `codes[i] * scales[i]`. No calibration set is needed.

        Raises:
          EndxError: a text is not a string; a prompt, precision or argument is unknown; or `truncate_dim` is below 1.
        """
        _check_others(others)
        output = self._output(truncate_dim, normalize_embeddings, precision)
        chosen = self._chosen_prompt(prompt, prompt_name)
        return self._encode("question", sentences, chosen, batch_size, show_progress_bar, output, convert_to_numpy)

    def encode_document(
        self,
        sentences: str | Iterable[str],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        convert_to_numpy: bool = True,
        precision: Precision = "float32",
        **others: object,
    ) -> Embeddings:
        """Encodes answers or documents, as `encode_query` does questions."""
        _check_others(others)
        output = self._output(truncate_dim, normalize_embeddings, precision)
        chosen = self._chosen_prompt(prompt, prompt_name)
        return self._encode("answer", sentences, chosen, batch_size, show_progress_bar, output, convert_to_numpy)

    def encode(
        self,
        sentences: str | Iterable[str],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        convert_to_numpy: bool = True,
        precision: Precision = "float32",
        **others: object,
    ) -> Embeddings:
        """Encodes texts with a model that embeds both sides alike; otherwise like `encode_query`.

        Raises:
          EndxError: as in `encode_query`, or the two sides differ. If they differ only in their prompts, give `prompt`
            or `prompt_name`.
        """
        _check_others(others)
        chosen = self._chosen_prompt(prompt, prompt_name)
        differences = [d for d in self._differences() if d != PROMPTS or chosen is None]
        if differences:
            settled = "; or give prompt=" if differences == [PROMPTS] else ""
            raise EndxError(
                f"{self.name} embeds questions and documents differently, by other {' and '.join(differences)}: use "
                f"encode_query for what is asked and encode_document for what is searched{settled}"
            )
        lengths = {side: self.encoder.processors[side].length for side in SIDES}
        output = self._output(truncate_dim, normalize_embeddings, precision)
        return self._encode(
            max(lengths, key=lengths.__getitem__),
            sentences,
            self.default_prompt if chosen is None else chosen,
            batch_size,
            show_progress_bar,
            output,
            convert_to_numpy,
        )

    def comparable(self, side: str, texts: Sequence[str]) -> np.ndarray:
        """Encodes N texts of a side, `question` or `answer`, for comparison by inner product: float32 [N, E]."""
        output = Output(normalize=self.cosine)
        found = self.encoder(self.params, side, texts, progress=showing_progress(), output=output)
        return cast(np.ndarray, found)  # float32 is no `Quantized`

    def similarity(self, a: np.ndarray | Quantized, b: np.ndarray | Quantized) -> np.ndarray:
        """Computes similarities of every row of `a` [A, E] (or [E]) with every row of `b`: float32 [A, B].

        These are cosines for a model that was trained with them, else inner products.

        Raises:
          EndxError: an argument is not an array of embeddings, or the widths differ.
        """
        a, b = self._compared(a, b)
        return a @ b.T

    def similarity_pairwise(self, a: np.ndarray | Quantized, b: np.ndarray | Quantized) -> np.ndarray:
        """Computes the similarity of row i of `a` [N, E] with row i of `b`: float32 [N].

        Raises:
          EndxError: as in `similarity`, or the numbers of rows differ.
        """
        a, b = self._compared(a, b)
        if len(a) != len(b):
            raise EndxError(
                f"similarity_pairwise compares row by row, but a has {len(a)} rows and b has {len(b)}; similarity "
                "compares every row with every row"
            )
        return np.einsum("ne,ne->n", a, b)

    def _compared(self, a: np.ndarray | Quantized, b: np.ndarray | Quantized) -> tuple[np.ndarray, np.ndarray]:
        """Returns float32 [A, E] and [B, E] whose inner products are the similarities."""
        a, b = _rows("a", a), _rows("b", b)
        if a.shape[1] != b.shape[1]:
            raise EndxError(
                f"a has embeddings of {a.shape[1]} dimensions and b of {b.shape[1]}; only embeddings of the same model "
                "and truncate_dim can be compared"
            )
        return (unit_rows(a), unit_rows(b)) if self.cosine else (a, b)

    def _differences(self) -> list[str]:
        """Returns the differences between the two sides that affect every embedding."""
        question, answer = (self.encoder.processors[side] for side in SIDES)
        towers = self.encoder.model
        differ = {
            PARAMETERS: towers.question != towers.answer or bool(set(self.params) - {"shared"}),
            "tokenizers": not question.tokenizer.same_ids(answer.tokenizer),
            PROMPTS: question.prompt != answer.prompt,
        }
        return [name for name, differs in differ.items() if differs]

    def _chosen_prompt(self, prompt: str | None, prompt_name: str | None) -> str | None:
        """Returns the prompt that a call asks for; None for the model's prompt."""
        if prompt is not None or prompt_name is None:
            return prompt
        if prompt_name not in self.named_prompts:
            known = ", ".join(self.named_prompts) or "none"
            hint = nearest(prompt_name, self.named_prompts)
            raise EndxError(f"{self.name} has no prompt of the name {prompt_name!r}{hint}; its prompts are {known}")
        return self.named_prompts[prompt_name]

    def _output(self, truncate_dim: int | None, normalize: bool, precision: Precision) -> Output:
        return Output(self.truncate_dim if truncate_dim is None else truncate_dim, normalize, precision)

    def _encode(
        self,
        side: str,
        sentences: str | Iterable[str],
        prompt: str | None,
        batch_size: int,
        show_progress_bar: bool | None,
        output: Output,
        convert_to_numpy: bool,
    ) -> Embeddings:
        texts, cut_before = _texts(sentences), self.encoder.cut
        progress = showing_progress() if show_progress_bar is None else show_progress_bar
        found = self.encoder(
            self.params, side, texts, batch_size=batch_size, progress=progress, output=output, prompt=prompt
        )
        if cut_before == 0 < self.encoder.cut:
            LOG.warning(
                "%s: %d of %d %ss are longer than %d tokens and were cut; of later ones nothing is said",
                self.name,
                self.encoder.cut,
                len(texts),
                side,
                self.encoder.processors[side].length,
            )
        if isinstance(sentences, str):
            found = jax.tree.map(lambda part: part[0], found)
        return found if convert_to_numpy else jax.tree.map(jax.numpy.asarray, found)


def _texts(sentences: object) -> list[str]:
    """Returns all texts, checked to be strings."""
    if isinstance(sentences, str):
        return [sentences]
    if isinstance(sentences, Mapping) or not isinstance(sentences, Iterable):
        raise EndxError(f"sentences is of type {type(sentences).__name__}; give a string, or a list of strings")
    texts = list(sentences)
    for place, text in enumerate(texts):
        if not isinstance(text, str):
            kind, shown = type(text).__name__, repr(text)[:40]
            raise EndxError(f"sentences[{place}] is of type {kind}, {shown}; every text must be a string")
    return texts


def _rows(name: str, x: np.ndarray | Quantized) -> np.ndarray:
    """Returns float32 [N, E] from embeddings of `encode_query` or `encode_document`, or from one row [E] of them.

    Raises:
      EndxError: it is not an array of numbers of that shape; the message calls it `name`.
    """
    try:
        rows = np.atleast_2d(np.asarray(dequantize(x) if isinstance(x, Quantized) else x, np.float32))
    except (TypeError, ValueError):
        raise EndxError(
            f"{name} must be embeddings [N, E]; encode texts first, by encode_query or encode_document"
        ) from None
    if rows.ndim != 2:
        raise EndxError(f"{name} has shape {rows.shape}; it must be embeddings [N, E]")
    return rows


def _check_others(others: Mapping[str, object]) -> None:
    """Raises EndxError for an unsupported argument, unless it has a value without effect."""
    for name, value in others.items():
        if name not in UNSUPPORTED:
            known = [*inspect.signature(EmbeddingModel.encode_query).parameters, *UNSUPPORTED]
            raise EndxError(f"there is no argument {name!r}{nearest(name, known)}")
        default, instead = UNSUPPORTED[name]
        if value != default:
            raise EndxError(f"{name}={value!r} is not supported: {instead}")
