"""Adapter for MTEB: `mteb.evaluate(endx_jax.mteb.wrap(endx_jax.load(...)), tasks)`.

MTEB (https://github.com/embeddings-benchmark/mteb) is not a dependency; install it with `pip install mteb`.
"""

import functools
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from endx_jax.inference import EmbeddingModel
from endx_jax.models.dual_encoder import SIDES

if TYPE_CHECKING:
    from mteb.models import ModelMeta


class MTEBModel:
    """Implementation of MTEB's `EncoderProtocol` for an `EmbeddingModel`.

    Queries and documents are encoded by `encode_query` and `encode_document`. Texts that are neither, as in clustering
    or similarity tasks, are encoded by `encode`, which raises EndxError if the sides of the model differ.
    """

    def __init__(self, model: EmbeddingModel, name: str = ""):
        """Wraps a model.

        Args:
          model: model of `endx_jax.load`.
          name: name for MTEB, as `organisation/model`; empty for `endx_jax/` and the last part of the model's name.
        """
        self.model = model
        self.name = name or f"endx_jax/{pathlib.PurePath(model.name).name}"

    @functools.cached_property
    def mteb_model_meta(self) -> "ModelMeta":
        """Metadata under which MTEB stores results; the revision is the identity of the model."""
        from mteb.models import ModelMeta
        from mteb.models.model_meta import ScoringFunction

        model = self.model
        return ModelMeta.create_empty(
            {
                "name": self.name,
                "revision": model.identity,
                "framework": ["JAX"],
                "embed_dim": model.width,
                "max_tokens": max(model.encoder.processors[side].length for side in SIDES),
                "similarity_fn_name": ScoringFunction("cosine" if model.cosine else "dot"),
                "use_instructions": any(model.prompts.values()),
            }
        )

    def encode(
        self,
        inputs: Iterable[Mapping[str, Sequence[str]]],
        *,
        task_metadata: Any,
        hf_split: str,
        hf_subset: str,
        prompt_type: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
    ) -> np.ndarray:
        """Encodes the N texts of a task.

        Args:
          inputs: batches, each with its texts under `text`.
          task_metadata: ignored.
          hf_split: ignored.
          hf_subset: ignored.
          prompt_type: `query` or `document`; None for texts that are neither.
          batch_size: see `EmbeddingModel.encode_query`.
          show_progress_bar: see `EmbeddingModel.encode_query`.

        Returns:
          Embeddings, float32 [N, E].

        Raises:
          EndxError: `prompt_type` is None and the sides of the model differ.
        """
        del task_metadata, hf_split, hf_subset
        texts = [text for batch in inputs for text in batch["text"]]
        encoders = {"query": self.model.encode_query, "document": self.model.encode_document}
        encode = self.model.encode if prompt_type is None else encoders[prompt_type]
        return np.asarray(encode(texts, batch_size=batch_size, show_progress_bar=show_progress_bar))

    def similarity(self, embeddings1: np.ndarray, embeddings2: np.ndarray) -> np.ndarray:
        """Returns the similarities of all pairs of rows, [A, B]: see `EmbeddingModel.similarity`."""
        return self.model.similarity(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: np.ndarray, embeddings2: np.ndarray) -> np.ndarray:
        """Returns the similarities of corresponding rows, [N]: see `EmbeddingModel.similarity_pairwise`."""
        return self.model.similarity_pairwise(embeddings1, embeddings2)


def wrap(model: EmbeddingModel, name: str = "") -> MTEBModel:
    """Wraps a loaded model for `mteb.evaluate`: see `MTEBModel`."""
    return MTEBModel(model, name)
