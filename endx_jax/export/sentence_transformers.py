"""sentence-transformers 6 export: Transformer, Pooling, Dense and Normalize, with a Router for two encoders.

With one encoder for both sides, the modules form a sequence. Otherwise a Router comes first, with a route for each
side. A shared projection follows the Router (ADE-SPL); separate projections are part of the routes. Late interaction is
a MultiVectorEncoder: Transformer, Dense, MultiVectorMask and Normalize.
"""

import dataclasses
import pathlib
from typing import Any, cast

import numpy as np

from endx_jax import json_files
from endx_jax.export.towers import (
    one_tower,
    poolings,
    projection,
    write_json,
    write_tensors,
    write_transformer_folder,
)
from endx_jax.inference import EmbeddingModel
from endx_jax.models.dual_encoder import SIDES, TASKS
from endx_jax.models.token_embeddings import TokenChoice
from endx_jax.models.tower import Projection
from endx_jax.pretrained import multi_vector
from endx_jax.pretrained.sentence_transformers import ACTIVATIONS, POOLING_MODES
from endx_jax.settings import require

NAME = "sentence-transformers"
CONFIG = "config_sentence_transformers.json"
VERSION = "6.2.0"  # version of sentence-transformers that defines the format

TYPES = {
    "Transformer": "sentence_transformers.base.modules.transformer.Transformer",
    "MultiVectorMask": "sentence_transformers.multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask",
    "Pooling": "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
    "Dense": "sentence_transformers.base.modules.dense.Dense",
    "Normalize": "sentence_transformers.base.modules.normalize.Normalize",
    "Router": "sentence_transformers.base.modules.router.Router",
}
THEIR_POOLINGS = {ours: theirs for theirs, ours in POOLING_MODES.items()}
THEIR_FUNCTIONS = {ours: theirs for theirs, ours in ACTIVATIONS.items()}


@dataclasses.dataclass(frozen=True)
class Writer:
    """Writer of an export.

    Attributes:
      folder: output folder.
      model: model of `export.towers.plain`.
      poolings: name of the pooling of each side.
    """

    folder: pathlib.Path
    model: EmbeddingModel
    poolings: dict[str, str]

    def write(self) -> None:
        """Writes all modules and the module list."""
        projections = {side: projection(self.model, side) for side in SIDES}
        common = projections["question"]
        shared = common is projections["answer"]
        if self.model.by_token:
            require(
                one_tower(self.model),
                f"the format {NAME} needs one tower for late interaction: train with model.sharing=sde",
            )
            modules = [("Transformer", "")]
            self._transformer(self.folder, SIDES)
        elif one_tower(self.model):
            modules = [("Transformer", ""), ("Pooling", "1_Pooling")]
            self._transformer(self.folder, SIDES)
            self._pooling(self.folder / "1_Pooling", "question")
        else:
            modules = [("Router", "")]
            self._router({} if shared else projections)
        if shared and common is not None:
            modules.append(("Dense", f"{len(modules)}_Dense"))
            self._dense(self.folder / modules[-1][1], common, "question")
        if self.model.by_token:
            modules.append(("MultiVectorMask", f"{len(modules)}_MultiVectorMask"))
            write_json(self.folder / modules[-1][1] / "config.json", self._mask())
        if self.model.encoder.model.question.normalize:
            modules.append(("Normalize", f"{len(modules)}_Normalize"))
            write_json(self.folder / modules[-1][1] / "config.json", self._over)
        listed = [
            {"idx": number, "name": str(number), "path": path, "type": TYPES[kind]}
            for number, (kind, path) in enumerate(modules)
        ]
        write_json(self.folder / "modules.json", listed)
        write_json(self.folder / CONFIG, self._config())

    def _config(self) -> dict:
        side_prompts = {TASKS[side]: prompt for side, prompt in self.model.prompts.items()}
        prompts, default = {**self.model.named_prompts, **side_prompts}, self.model.default_prompt
        return {
            "__version__": {"sentence_transformers": VERSION},
            "model_type": multi_vector.KIND if self.model.by_token else "SentenceTransformer",
            "prompts": prompts,
            "default_prompt_name": next((name for name, text in prompts.items() if default and text == default), None),
            "similarity_fn_name": "maxsim" if self.model.by_token else "cosine" if self.model.cosine else "dot",
        }

    @property
    def _over(self) -> dict:
        """What Dense and Normalize convert."""
        name = "token_embeddings" if self.model.by_token else "sentence_embedding"
        return {"module_input_name": name, "module_output_name": name}

    def _mask(self) -> dict:
        tokenizer = self.model.encoder.processors["answer"].tokenizer
        choice = cast(TokenChoice, self.model.encoder.model.answer.tokens)
        return {"skiplist_words": tokenizer.tokens_of(choice.skip), "skiplist_tasks": ["document"]}

    def _expansion(self) -> dict:
        choice, length = self.model.encoder.model.question.tokens, self.model.encoder.processors["question"].length
        if choice is None or not choice.expand:
            return {}
        require(
            length >= choice.expand,
            f"the format {NAME} does not cut questions to {length} tokens and fill them up to {choice.expand}: train "
            f"with data.question_length={choice.expand}",
        )
        strategy = "fixed" if length == choice.expand else "min"
        return {"query_expansion": {"strategy": strategy, "attend": choice.attend, "length": choice.expand}}

    def _transformer(self, folder: pathlib.Path, sides: tuple[str, ...]) -> None:
        lengths = {side: self.model.encoder.processors[side].length for side in sides}
        write_transformer_folder(folder, self.model, sides[0], max(lengths.values()))
        lengths_by_task = {f"{TASKS[side]}_length": length for side, length in lengths.items()}
        config = {
            "transformer_task": "feature-extraction",
            "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
            "module_output_name": "token_embeddings",
            **self._expansion(),
            **(lengths_by_task if len(set(lengths.values())) > 1 else {}),
        }
        write_json(folder / "sentence_bert_config.json", config)

    def _pooling(self, folder: pathlib.Path, side: str) -> None:
        width = self.model.source.encoders[side].config.width
        mode = THEIR_POOLINGS[self.poolings[side]]
        config = {"embedding_dimension": width, "pooling_mode": mode, "include_prompt": True}
        write_json(folder / "config.json", config)

    def _dense(self, folder: pathlib.Path, params: dict[str, np.ndarray], side: str) -> None:
        pooled, width = params["kernel"].shape
        function = cast(Projection, self.model.encoder.model.tower(side).projection).function
        require(
            not self.model.by_token or (function == "identity" and "bias" not in params),
            f"{self.model.name} projects tokens with a bias or an activation, which endx_jax.load refuses: train it "
            "from an encoder without such a Dense",
        )
        config = {
            "in_features": pooled,
            "out_features": width,
            "bias": "bias" in params,
            "activation_function": THEIR_FUNCTIONS[function],
            **self._over,
        }
        write_json(folder / "config.json", config)
        biases = {"linear.bias": params["bias"]} if "bias" in params else {}
        write_tensors(folder / "model.safetensors", {"linear.weight": params["kernel"].T, **biases})

    def _router(self, projections: dict[str, dict[str, np.ndarray] | None]) -> None:
        types: dict[str, str] = {}
        structure: dict[str, list[str]] = {}
        for side, task in TASKS.items():
            own = projections.get(side)
            kinds = ["Transformer", "Pooling", *([] if own is None else ["Dense"])]
            names = [f"{task}_{number}_{kind}" for number, kind in enumerate(kinds)]
            self._transformer(self.folder / names[0], (side,))
            self._pooling(self.folder / names[1], side)
            if own is not None:
                self._dense(self.folder / names[2], own, side)
            types |= {name: TYPES[kind] for name, kind in zip(names, kinds, strict=True)}
            structure[task] = names
        # No default route: sentence-transformers then refuses texts that are neither queries nor documents.
        parameters: dict[str, Any] = {"default_route": None, "allow_empty_key": False, "route_mappings": {}}
        write_json(
            self.folder / "router_config.json", {"types": types, "structure": structure, "parameters": parameters}
        )


def write_sentence_transformers(folder: pathlib.Path, model: EmbeddingModel) -> None:
    """Writes a model of `export.towers.plain` into `folder`."""
    Writer(folder, model, poolings(model)).write()


def truncate(folder: pathlib.Path, width: int) -> None:
    """Makes an export keep the first `width` dimensions of embeddings by default."""
    write_json(folder / CONFIG, json_files.read_json_file(folder / CONFIG) | {"truncate_dim": width})
