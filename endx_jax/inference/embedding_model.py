"""Embedding model with methods named as in sentence-transformers."""

import dataclasses
import functools
import logging
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict, Unpack

import jax
import numpy as np

from endx_jax.data.batches.ragged import RaggedVectors
from endx_jax.errors import EndxError, nearest
from endx_jax.inference.encode import EmbeddingFormat, Precision, TextEncoder
from endx_jax.inference.token_pooling import pool_documents
from endx_jax.models.dual_encoder import SIDES
from endx_jax.models.token_embeddings import UNPOOLED, TokenPooling
from endx_jax.numerics import Quantized, dequantize, unit_rows
from endx_jax.parallel.console import showing_progress
from endx_jax.pretrained import PretrainedEncoder
from endx_jax.settings import require

EncodedTexts = np.ndarray | jax.Array | Quantized | list

PROMPTS = "prompts"


class EncodeOptions(TypedDict, total=False):
    """Keyword arguments of `EmbeddingModel.encode_query`, `encode_document` and `encode`, all of them optional.

    Attributes:
      prompt_name: name of a prompt in `named_prompts`; None for the prompt of the side.
      prompt: string prepended to every text; takes precedence over `prompt_name`.
      batch_size: number of texts of maximum length to encode together, by default 32. Batches of shorter texts have
        more rows and the same number of padded tokens; batches on a CPU are smaller if that is faster. Affects speed
        and memory only.
      show_progress_bar: true to show a progress bar; None, the default, shows one at a terminal.
      normalize_embeddings: true to scale embeddings to unit norm, after truncation; by default false.
      truncate_dim: number of leading dimensions to keep; None for the model's `truncate_dim`.
      convert_to_numpy: true, the default, for NumPy arrays, false for JAX arrays.
      precision: precision to which embeddings are rounded on the device: `float32`, the default, `bfloat16`, `float16`
        or `int8`.
      pool_factor: documents keep about one of this many token vectors, each the mean of similar ones: see
        `inference.token_pooling`; None for the model's own, by default 1. Only for an embedding for each token.
    """

    prompt_name: str | None
    prompt: str | None
    batch_size: int
    show_progress_bar: bool | None
    normalize_embeddings: bool
    truncate_dim: int | None
    convert_to_numpy: bool
    precision: Precision
    pool_factor: float | None


DEFAULTS = EncodeOptions(
    prompt_name=None,
    prompt=None,
    batch_size=32,
    show_progress_bar=None,
    normalize_embeddings=False,
    truncate_dim=None,
    convert_to_numpy=True,
    precision="float32",
    pool_factor=None,
)

# Unsupported arguments of sentence-transformers' `encode`: default and alternative.
UNSUPPORTED = {
    "convert_to_tensor": (
        False,
        "embeddings are NumPy arrays, or JAX arrays with convert_to_numpy=False; convert one with torch.from_numpy",
    ),
    "device": (None, "a model runs on the devices that JAX finds; set JAX_PLATFORMS to choose, such as cpu"),
    "output_value": ("sentence_embedding", "only embeddings of texts are returned"),
    "pool": (None, "one process encodes on all its devices"),
    "chunk_size": (None, "one process encodes on all its devices; batch_size limits its memory"),
}
LOG = logging.getLogger("endx_jax")


@dataclasses.dataclass(frozen=True)
class ModelSource:
    """Origin of a model, for exports.

    Attributes:
      encoders: pretrained encoder of each side, which describes its token table and encoder. For a trained model, their
        folders hold no weights.
      workdir: workdir of the run that trained the model; None for a pretrained model.
    """

    encoders: Mapping[str, PretrainedEncoder]
    workdir: pathlib.Path | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class EmbeddingModel:
    """Encodes questions and documents; arguments are named as in sentence-transformers.

    Attributes:
      name: path or name that was loaded.
      encoder: towers and text processors of the sides `question` and `answer`.
      params: parameters of the towers.
      cosine: true if embeddings are compared by cosine, false for inner product.
      source: origin of the model.
      named_prompts: prompts by the names that `prompt_name` accepts.
      default_prompt: prompt of `encode`.
      truncate_dim: default of the number of leading dimensions to keep; None keeps all.
      teacher: identity of the model whose embeddings these approximate; empty if there is none.
      token_pooling: pooling of the documents' token vectors.
    """

    name: str
    encoder: TextEncoder
    params: dict
    cosine: bool
    source: ModelSource
    named_prompts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    default_prompt: str = ""
    truncate_dim: int | None = None
    teacher: str = ""
    token_pooling: TokenPooling = UNPOOLED

    def __repr__(self) -> str:
        count = sum(leaf.size for leaf in jax.tree.leaves(self.params))
        towers = "one tower" if self.encoder.model.has_one_tower(self.params) else "two towers"
        tower = self.encoder.model.question
        pooling = getattr(tower.pooling, "__name__", type(tower.pooling).__name__)
        made = [f"{towers} of {type(tower.encoder).__name__}", f"{pooling} pooling"]
        compared = "cosine" if self.cosine else "inner product"
        facts = ", ".join([f"{self.width} dimensions", *made, compared, f"{count:,} parameters"])
        return f"EmbeddingModel({self.name!r}, {facts})"

    @functools.cached_property
    def identity(self) -> str:
        """Hexadecimal sha256 of everything that affects embeddings: see `inference.identity`."""
        return self.encoder.identity(self.params)

    @property
    def description(self) -> dict[str, Any]:
        """Name, identity, data type of products and pooling, as an index states them of the model that encoded it."""
        return {
            "name": self.name,
            "identity": self.identity,
            "product_dtype": self.product_dtype,
            **({"pool_factor": self.token_pooling.factor} if self.token_pooling.factor > 1 else {}),
        }

    @property
    def product_dtype(self) -> str | None:
        """Data type of the factors of linear layers' products; it is no part of the identity."""
        return self.encoder.model.answer.product_dtype

    @functools.cached_property
    def width(self) -> int:
        """Embedding width E."""
        # Traces the model, hence the cache: the server needs it in each request.
        return self.encoder.width(self.params, EmbeddingFormat(self.truncate_dim))

    @property
    def by_token(self) -> bool:
        """True if every token of a text has an embedding: late interaction."""
        return self.encoder.model.by_token

    def check_one_vector(self, what: str) -> None:
        """Raises EndxError, about `what` needs one, unless the model embeds a text by one vector."""
        if self.by_token:
            raise EndxError(
                f"{self.name} has an embedding for each token, and {what} needs one vector for each text: take another "
                "model, whose best documents this one can re-rank"
            )

    @property
    def prompts(self) -> dict[str, str]:
        """Prompts put before every text, by side."""
        return {side: self.encoder.processors[side].prompt for side in SIDES}

    @property
    def asymmetric(self) -> bool:
        """True if the two sides embed a text differently."""
        return bool(self._differences())

    def encode_query(self, sentences: str | Iterable[str], **options: Unpack[EncodeOptions]) -> EncodedTexts:
        """Encodes questions.

        Texts that are longer than the maximum length of their side are truncated; a warning is logged the first time.

        Args:
          sentences: N texts, or one; a column of NumPy, pandas or pyarrow too.
          **options: see `EncodeOptions`. Other arguments of sentence-transformers may only have their default values.

        Returns:
          Embeddings [N, E] in the order of the texts; [E] for one text. For `int8`, a `Quantized` of codes, int8
          [N, E], and scales, float32 [N]: row i is `codes[i] * scales[i]`. No calibration set is needed. A model with
          an embedding for each token returns a list of N such results, each of the L tokens of a text, [L, E].

        Raises:
          EndxError: a text is not a string, a prompt, precision or argument is unknown, `batch_size` is below 1, or
            `truncate_dim` is not between 1 and E.

        Examples:
          >>> model = endx_jax.load("all-MiniLM-L6-v2")
          >>> model.encode_query(["How do I send an email?", "How do I reshape an array?"]).shape
          (2, 384)
        """
        return self._encode("question", sentences, options)

    def encode_document(self, sentences: str | Iterable[str], **options: Unpack[EncodeOptions]) -> EncodedTexts:
        """Encodes answers or documents; arguments and results are those of `encode_query`.

        Examples:
          >>> model = endx_jax.load("all-MiniLM-L6-v2")
          >>> model.encode_document(["smtplib sends e-mail.", "numpy.reshape changes shapes."]).shape
          (2, 384)
        """
        return self._encode("answer", sentences, options)

    def encode(self, sentences: str | Iterable[str], **options: Unpack[EncodeOptions]) -> EncodedTexts:
        """Encodes texts with a model that embeds both sides alike; arguments and results are those of `encode_query`.

        Raises:
          EndxError: the sides differ in parameters or tokenizers, or in prompts while neither `prompt` nor
            `prompt_name` is given; or an error of `encode_query`.

        Examples:
          >>> model = endx_jax.load("all-MiniLM-L6-v2")  # has one tower and no prompts
          >>> texts = ["How do I send an email?", "smtplib sends e-mail."]
          >>> bool((model.encode(texts) == model.encode_query(texts)).all())
          True
        """
        return self._encode(None, sentences, options)

    def comparable(self, side: str, texts: Sequence[str]) -> np.ndarray:
        """Encodes N texts of a side, `question` or `answer`: float32 [N, E] whose inner products are similarities.

        Raises:
          EndxError: the model has an embedding for each token.
        """
        self.check_one_vector("an inner product")
        return self.ranked(side, texts)

    def ranked(self, side: str, texts: Sequence[str]) -> Any:
        """Encodes N texts of a side for `ranking.systems.scores_of`: [N, E], or `RaggedVectors`."""
        output = EmbeddingFormat(self.truncate_dim, normalize=self.cosine)
        return self.encode_side(side, texts, output, progress=showing_progress())

    def encode_side(
        self, side: str, texts: Sequence[str], output: EmbeddingFormat, pool_factor: float | None = None, **options: Any
    ) -> Any:
        """Encodes N texts of a side by `encoder` with `options`; the token vectors of answers are pooled."""
        pooling = self.token_pooling
        if pool_factor is not None:
            pooling = dataclasses.replace(pooling, factor=pool_factor)
            require(self.by_token or pool_factor == 1, f"pool_factor: {self.name} has one vector for each text")
        if not self.by_token or side != "answer" or pooling.factor == 1:
            return self.encoder(self.params, side, texts, output=output, **options)
        whole = dataclasses.replace(output, precision="float32")
        vectors = pool_documents(self.encoder(self.params, side, texts, output=whole, **options), pooling)
        return RaggedVectors(output.rounded(vectors.values, np), vectors.offsets)

    def similarity(self, a: np.ndarray | Quantized, b: np.ndarray | Quantized) -> np.ndarray:
        """Returns the similarities of every row of `a` with every row of `b`.

        They are cosines or inner products, as in the training of the model. For a model with an embedding for each
        token they are MaxSim, of questions `a` and documents `b`: lists of arrays [L, E], or one such array.

        Args:
          a: embeddings [A, E], or one [E].
          b: embeddings [B, E], or one [E].

        Returns:
          float32 [A, B].

        Raises:
          EndxError: an argument is not an array of embeddings, or the widths differ.

        Examples:
          >>> model = endx_jax.load("all-MiniLM-L6-v2")
          >>> print(model.similarity(np.array([[3.0, 4.0]]), np.array([[1.0, 0.0], [0.0, 2.0]])))  # cosines
          [[0.6 0.8]]
        """
        if self.by_token:
            from endx_jax.inference.maxsim import maxsim_scores  # with the losses, which encoding does not need

            questions, documents = _token_rows("a", a), _token_rows("b", b)
            return np.asarray(maxsim_scores(questions, documents)(0, len(questions)))
        a, b = self._compared(a, b)
        return a @ b.T

    def similarity_pairwise(self, a: np.ndarray | Quantized, b: np.ndarray | Quantized) -> np.ndarray:
        """Returns the similarities of row i of `a` [N, E] with row i of `b` [N, E], float32 [N].

        Raises:
          EndxError: an argument is not an array of embeddings, or the shapes differ.

        Examples:
          >>> model = endx_jax.load("all-MiniLM-L6-v2")
          >>> print(model.similarity_pairwise(np.array([[3.0, 4.0], [1.0, 0.0]]), np.array([[5.0, 0.0], [0.0, 2.0]])))
          [0.6 0. ]
        """
        self.check_one_vector("similarity_pairwise")
        a, b = self._compared(a, b)
        if len(a) != len(b):
            raise EndxError(
                f"similarity_pairwise needs equal numbers of rows, not {len(a)} and {len(b)}: use similarity"
            )
        return np.einsum("ne,ne->n", a, b)

    def _compared(self, a: np.ndarray | Quantized, b: np.ndarray | Quantized) -> tuple[np.ndarray, np.ndarray]:
        """Returns float32 [A, E] and [B, E] whose inner products are the similarities."""
        a, b = _rows("a", a), _rows("b", b)
        if a.shape[1] != b.shape[1]:
            widths = f"{a.shape[1]} dimensions and b of {b.shape[1]}"
            raise EndxError(f"a has embeddings of {widths}: encode both by the same model and truncate_dim")
        return (unit_rows(a), unit_rows(b)) if self.cosine else (a, b)

    def _differences(self) -> list[str]:
        """Returns the differences of the sides that affect every embedding, such as `tokenizers`."""
        question, answer = (self.encoder.processors[side] for side in SIDES)
        differ = {
            "parameters": not self.encoder.model.is_siamese(self.params),
            "tokenizers": not question.tokenizer.same_ids(answer.tokenizer),
            PROMPTS: question.prompt != answer.prompt,
        }
        return [name for name, differs in differ.items() if differs]

    def _chosen_prompt(self, prompt: str | None, prompt_name: str | None) -> str | None:
        """Returns the prompt that the arguments select; None if they are both None."""
        if prompt is not None or prompt_name is None:
            return prompt
        if prompt_name not in self.named_prompts:
            names = ", ".join(self.named_prompts) or "none"
            hint = nearest(prompt_name, self.named_prompts)
            raise EndxError(f"{self.name} has no prompt named {prompt_name!r}{hint}; its prompts are {names}")
        return self.named_prompts[prompt_name]

    def _encode(self, side: str | None, sentences: str | Iterable[str], given: EncodeOptions) -> EncodedTexts:
        """Encodes texts of a side; None: of a model that embeds both sides alike."""
        _check_names(given)
        options: EncodeOptions = DEFAULTS | given
        prompt = self._chosen_prompt(options["prompt"], options["prompt_name"])
        if side == "question":
            require(options["pool_factor"] is None, "pool_factor is for documents: leave it out for questions")
        if side is None:
            side, prompt = self._side_of_both(prompt), self.default_prompt if prompt is None else prompt
        width, progress = options["truncate_dim"], options["show_progress_bar"]
        texts, cut_before = _check_texts(sentences), self.encoder.cut
        width = self.truncate_dim if width is None else width
        embeddings: Any = self.encode_side(
            side,
            texts,
            EmbeddingFormat(width, options["normalize_embeddings"], options["precision"]),
            options["pool_factor"],
            batch_size=options["batch_size"],
            progress=showing_progress() if progress is None else progress,
            prompt=prompt,
        )
        if cut_before == 0 < self.encoder.cut:
            LOG.warning(
                "%s: %d of %d %ss are longer than %d tokens and were truncated; this warning is not repeated",
                self.name,
                self.encoder.cut,
                len(texts),
                side,
                self.encoder.processors[side].length,
            )
        if self.by_token:
            embeddings = embeddings[0] if isinstance(sentences, str) else list(embeddings)
        elif isinstance(sentences, str):
            embeddings = jax.tree.map(lambda part: part[0], embeddings)
        return embeddings if options["convert_to_numpy"] else jax.tree.map(jax.numpy.asarray, embeddings)

    def _side_of_both(self, prompt: str | None) -> str:
        """Returns the side with the longer texts; raises EndxError if the sides embed a text differently."""
        differences = [d for d in self._differences() if d != PROMPTS or prompt is None]
        if differences:
            hint = ", or pass prompt=" if differences == [PROMPTS] else ""
            raise EndxError(
                f"{self.name} has different {' and '.join(differences)} for questions and documents: use encode_query "
                f"for questions and encode_document for documents{hint}"
            )
        return max(SIDES, key=lambda side: self.encoder.processors[side].length)


def _check_texts(sentences: object) -> list[str]:
    """Returns the texts as a list; raises EndxError unless all are strings."""
    if isinstance(sentences, str):
        return [sentences]
    kind, shape, wanted = type(sentences).__name__, getattr(sentences, "shape", (0,)), "a string or a list of strings"
    if len(shape) != 1:  # a table, whose items are its columns' names or its rows
        raise EndxError(f"sentences is a {kind} of shape {shape}; pass {wanted}, such as one of its columns")
    if isinstance(sentences, Mapping | bytes | set | frozenset) or not isinstance(sentences, Iterable):
        raise EndxError(f"sentences is of type {kind}; pass {wanted}")
    texts = sentences.to_pylist() if hasattr(sentences, "to_pylist") else list(sentences)
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            kind, shown = type(text).__name__, repr(text)[:40]
            raise EndxError(f"sentences[{index}] is of type {kind}, {shown}; every text must be a string")
    return texts


def _rows(name: str, x: np.ndarray | Quantized) -> np.ndarray:
    """Converts embeddings [N, E] or [E], possibly quantized, to float32 [N, E]."""
    try:
        rows = np.atleast_2d(np.asarray(dequantize(x), np.float32))
    except (TypeError, ValueError):
        raise EndxError(f"{name} must be embeddings [N, E]; encode texts first") from None
    if rows.ndim != 2:
        raise EndxError(f"{name} has shape {rows.shape}; it must be embeddings [N, E]")
    return rows


def _token_rows(name: str, x: Any) -> RaggedVectors:
    """Returns the embeddings of the tokens of texts, a list of [L, E] or one of them, as float32."""
    listed = [x] if isinstance(x, Quantized) or getattr(x, "ndim", 0) == 2 else list(x)
    return RaggedVectors.of([_rows(f"{name}[{n}]", text) for n, text in enumerate(listed)])


def _check_names(options: Mapping[str, object]) -> None:
    """Raises EndxError for unknown arguments, and for unsupported ones that do not have their default value."""
    for name, value in options.items():
        if name not in DEFAULTS and name not in UNSUPPORTED:
            raise EndxError(f"there is no argument {name!r}{nearest(name, ['sentences', *DEFAULTS, *UNSUPPORTED])}")
        default, instead = UNSUPPORTED.get(name, (value, ""))
        if value != default:
            raise EndxError(f"{name}={value!r} is not supported: {instead}")
