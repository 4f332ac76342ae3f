"""`endx_jax.load`: a model to encode with, from a run's workdir or a pretrained folder or name."""

import dataclasses
import os
import pathlib
from collections.abc import Sequence

import jax
import numpy as np

from endx_jax import pretrained
from endx_jax.data.tokenization import Preparation, Tokenizer
from endx_jax.experiment import workdir as workdirs
from endx_jax.experiment.console import showing_progress
from endx_jax.experiment.model import best_params, read_model
from endx_jax.parallel.mesh import MeshSettings, make_mesh
from endx_jax.pretrained.towers import ModelSettings, build_dual_encoder, fill_in, initial_params
from endx_jax.retrieval.encode import Output, Precision, TextEncoder
from endx_jax.retrieval.quantize import Quantized, dequantize

# Tokens of a text that a pretrained encoder without any limit of its own is given at most.
LONGEST = 512


@dataclasses.dataclass(frozen=True, eq=False)
class EmbeddingModel:
    """Encodes questions and documents; arguments are named as in sentence-transformers.

    Attributes:
      name: what was loaded.
      encoder: the towers and their tokenizer.
      params: of the towers.
      cosine: whether embeddings are compared by cosine rather than inner product.
    """

    name: str
    encoder: TextEncoder
    params: dict
    cosine: bool

    def encode_query(
        self,
        sentences: str | Sequence[str],
        *,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        convert_to_numpy: bool = True,
        precision: Precision = "float32",
    ) -> np.ndarray | jax.Array | Quantized:
        """Encodes questions.

        Args:
          sentences: N texts, or one.
          batch_size: texts of the greatest length encoded together; of shorter ones as many as have the same number of
            padded tokens, and on a CPU fewer where that is faster. Changes speed and memory only.
          show_progress_bar: None shows one at a terminal.
          normalize_embeddings: whether to scale to unit norm, after truncation.
          truncate_dim: keep so many leading dimensions; None keeps all.
          convert_to_numpy: false gives JAX arrays.
          precision: what the embeddings are rounded to on the device, last of all: `float32`, `bfloat16`, `float16`, or
            `int8`.

        Returns:
          [N, E] of that precision in the order given; [E] for one text. For `int8` a `Quantized` of codes, int8 [N, E],
          and scales, float32 [N]: row i stands for `codes[i] * scales[i]`, and scales need no calibration set.

        Raises:
          EndxError: for another precision, or a `truncate_dim` below 1.
        """
        return self._encode(
            "question",
            sentences,
            batch_size=batch_size,
            show_progress_bar=show_progress_bar,
            normalize_embeddings=normalize_embeddings,
            truncate_dim=truncate_dim,
            convert_to_numpy=convert_to_numpy,
            precision=precision,
        )

    def encode_document(
        self,
        sentences: str | Sequence[str],
        *,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        convert_to_numpy: bool = True,
        precision: Precision = "float32",
    ) -> np.ndarray | jax.Array | Quantized:
        """Encodes answers or documents, as `encode_query` does questions."""
        return self._encode(
            "answer",
            sentences,
            batch_size=batch_size,
            show_progress_bar=show_progress_bar,
            normalize_embeddings=normalize_embeddings,
            truncate_dim=truncate_dim,
            convert_to_numpy=convert_to_numpy,
            precision=precision,
        )

    def similarity(self, a: np.ndarray | Quantized, b: np.ndarray | Quantized) -> np.ndarray:
        """Similarities of every row of `a` [A, E] (or [E]) with every row of `b`: float32 [A, B].

        Cosines for a model that was trained with them, else inner products.
        """
        a, b = _rows(a), _rows(b)
        if self.cosine:
            a, b = _unit(a), _unit(b)
        return a @ b.T

    def _encode(
        self,
        side,
        sentences,
        *,
        batch_size,
        show_progress_bar,
        normalize_embeddings,
        truncate_dim,
        convert_to_numpy,
        precision,
    ):
        single = isinstance(sentences, str)
        progress = showing_progress() if show_progress_bar is None else show_progress_bar
        texts = [sentences] if single else list(sentences)
        output = Output(truncate_dim, normalize_embeddings, precision)
        found = self.encoder(self.params, side, texts, batch_size=batch_size, progress=progress, output=output)
        if single:
            found = jax.tree.map(lambda part: part[0], found)
        return found if convert_to_numpy else jax.tree.map(jax.numpy.asarray, found)


def load(path_or_name: str | os.PathLike) -> EmbeddingModel:
    """Loads a model.

    Args:
      path_or_name: the workdir of a run, whose best checkpoint is taken; a Hugging Face or sentence-transformers folder
        of one encoder; or a name that `endx_jax.pretrained.locate` knows or finds on the hub.

    Raises:
      EndxError: when there is no such model, or it is not whole.
    """
    mesh = make_mesh(MeshSettings(), jax.local_devices())
    folder = pathlib.Path(path_or_name).expanduser()
    if (folder / workdirs.MODEL).is_dir():
        model = read_model(folder)
        params, _ = best_params(folder, model, mesh)
        normalize = model.settings.model.normalize
        return EmbeddingModel(str(path_or_name), model.text_encoder(mesh), params["dual_encoder"], normalize)

    source = pretrained.load(str(path_or_name))
    settings = ModelSettings(pretrained=str(path_or_name), normalize=source.head.normalize)
    sources = {"question": source, "answer": source}
    dual_encoder = build_dual_encoder(fill_in(settings, source), sources)
    tokenizer = Tokenizer(source.folder)
    tokenizer.check_matches(source.config.vocab_size, source.config.pad_id, source.folder)
    limit = min(limit for limit in (source.head.max_length, source.config.positions, LONGEST) if limit)
    encoder = TextEncoder(dual_encoder, {side: Preparation(tokenizer, limit) for side in sources}, mesh)
    params = jax.device_put(initial_params(dual_encoder, settings, sources, jax.random.key(0)))
    return EmbeddingModel(str(path_or_name), encoder, params, cosine=source.head.normalize)


def _rows(x: np.ndarray | Quantized) -> np.ndarray:
    """float32 [N, E] of what one call of `encode_query` or `encode_document` gave."""
    return np.atleast_2d(np.asarray(dequantize(x) if isinstance(x, Quantized) else x, np.float32))


def _unit(x: np.ndarray) -> np.ndarray:
    return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12)
