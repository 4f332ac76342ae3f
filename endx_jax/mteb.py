"""Adapter for MTEB: `mteb.evaluate(endx_jax.mteb.wrap(endx_jax.load(...)), tasks)`.

MTEB (https://github.com/embeddings-benchmark/mteb) is not a dependency; install it with `pip install mteb`.
"""

import functools
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from endx_jax.errors import EndxError
from endx_jax.files import last_name
from endx_jax.inference import EmbeddingModel
from endx_jax.json_files import shown
from endx_jax.models.dual_encoder import SIDES
from endx_jax.numerics import dequantize
from endx_jax.settings import require

if TYPE_CHECKING:
    from mteb.models import ModelMeta

LOG = logging.getLogger("endx_jax")


class MTEBModel:
    """Implementation of MTEB's `EncoderProtocol` for an `EmbeddingModel`.

    Queries and documents are encoded by `encode_query` and `encode_document`; texts that are neither, as in clustering
    or similarity tasks, by `encode`. Prompts are chosen as by MTEB's wrapper of sentence-transformers: the first of the
    model's `named_prompts` that is named as the task and kind, joined by a hyphen (`NFCorpus-query`), the task
    (`NFCorpus`), the type of task and kind (`Retrieval-query`), the type of task (`Retrieval`) or the kind (`query`).
    Without one, queries and documents have the prompt of their side, and other texts the model's default prompt.
    """

    def __init__(self, model: EmbeddingModel, name: str = ""):
        """Wraps a model.

        Args:
          model: model of `endx_jax.load`.
          name: name for MTEB, as `organisation/model`; empty for `endx_jax/` and the last part of the model's name.

        Raises:
          EndxError: the model embeds each token of a text.
        """
        model.check_one_vector("MTEB")
        self.model = model
        self.name = name or f"endx_jax/{last_name(model.name)}"

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
        **options: Any,
    ) -> np.ndarray:
        """Encodes the N texts of a task.

        Args:
          inputs: batches, each with its texts under `text`.
          task_metadata: MTEB's `TaskMetadata`, of which `name` and `type` choose the prompt.
          hf_split: ignored.
          hf_subset: ignored.
          prompt_type: `query` or `document`; None for texts that are neither.
          options: arguments of `EmbeddingModel.encode_query`; a prompt among them takes the place of the task's.

        Returns:
          Embeddings, float32 [N, E].

        Raises:
          EndxError: `prompt_type` is None and the sides of the model differ in parameters or tokenizers; an input is
            not text; or an option is unknown.
        """
        del hf_split, hf_subset
        model, task, kind = self.model, task_metadata, getattr(prompt_type, "value", prompt_type)
        texts: list[str] = []
        for batch in inputs:
            if other := {"image", "audio", "video"}.intersection(batch):
                raise EndxError(f"{task.name} has inputs of {', '.join(sorted(other))}: {self.name} embeds text only")
            texts += batch["text"]
        names = (f"{task.name}-{kind}", task.name, f"{task.type}-{kind}", task.type, str(kind))
        prompt = next((model.named_prompts[name] for name in names if name in model.named_prompts), None)
        if kind is None and prompt is None:
            prompt = model.default_prompt
            if len(set(model.prompts.values())) > 1:
                LOG.warning(
                    "%s: texts of %s are neither queries nor documents, and no prompt is named %s or %s; they are "
                    "encoded with the default prompt, %r",
                    *(model.name, task.name, task.name, task.type, prompt),
                )
        encode = {"query": model.encode_query, "document": model.encode_document, None: model.encode}[kind]
        if not {"prompt", "prompt_name"} & options.keys():
            options["prompt"] = prompt
        embeddings = encode(texts, **options)
        return np.asarray(dequantize(embeddings), np.float32)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Returns the similarities of all pairs of rows, a tensor [A, B]: see `EmbeddingModel.similarity`."""
        return _tensor(self.model.similarity(embeddings1, embeddings2))

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Returns the similarities of corresponding rows, a tensor [N]: see `EmbeddingModel.similarity_pairwise`."""
        return _tensor(self.model.similarity_pairwise(embeddings1, embeddings2))


def _tensor(values: np.ndarray) -> Any:
    """Returns values as a PyTorch tensor, whose method `float` MTEB calls; unchanged if PyTorch is not installed."""
    try:
        import torch
    except ImportError:
        return values
    return torch.from_numpy(values)


def wrap(model: EmbeddingModel, name: str = "") -> MTEBModel:
    """Wraps a loaded model for `mteb.evaluate`: see `MTEBModel`."""
    require(isinstance(model, EmbeddingModel), f"model is {shown(model)}; pass a model of endx_jax.load")
    return MTEBModel(model, name)
