"""Rerankers that are language models: Qwen3-Reranker (Zhang et al. 2025), read as pair classifiers."""

import dataclasses
import pathlib
from collections.abc import Sequence

import jax
import numpy as np

from endx_jax import json_files
from endx_jax.data.token_tables import TokenTable
from endx_jax.data.tokenization import TextProcessor, Tokenizer
from endx_jax.errors import EndxError
from endx_jax.methods.pair.batches import join
from endx_jax.methods.pair.classifier import PairClassifier
from endx_jax.methods.pair.cross_encoder import TOKENS
from endx_jax.methods.pair.evaluator import PairScorer
from endx_jax.models.dual_encoder import SIDES
from endx_jax.parallel.console import showing_progress
from endx_jax.parallel.mesh import MeshSettings, make_mesh
from endx_jax.parallel.sharding import place, state_shardings
from endx_jax.pretrained.checkpoint import PretrainedEncoder
from endx_jax.pretrained.module_list import MODULES
from endx_jax.pretrained.sentence_transformers import Head
from endx_jax.pretrained.settings import ModelSettings
from endx_jax.pretrained.towers import build_dual_encoder, fill_in, stored_params
from endx_jax.pretrained.weights import open_tensors
from endx_jax.retrieval.rerank import LoadedPairs, ScorePairs

KIND = "Qwen3ForCausalLM"
LONGEST = 8192  # tokens of a pair, as on the model's card
# The prompt on the model's card. It asks for "yes" or "no", which the next token would be.
BEFORE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n<Instruct>: Given a web '
    "search query, retrieve relevant passages that answer the query\n<Query>: "
)
AFTER = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
# No token spans the colon and the space after it, so both parts of a pair can be tokenized alone.
COLON = ":"
# Names of the scores of all tokens, or of the token table if they are one.
OUTPUTS = ("lm_head.weight", "model.embed_tokens.weight")


@dataclasses.dataclass(frozen=True)
class Ended(TextProcessor):
    """Text processor that adds ids to the end of every text, inside its maximum length."""

    ending: tuple[int, ...] = ()

    def __call__(self, texts: Sequence[str]) -> TokenTable:
        """Tokenizes N texts."""
        table = self.tokenizer([self.prompt + text for text in texts], self.length - len(self.ending))
        last = TokenTable.from_lengths(np.array([0, *self.ending], np.int32), np.array([1 + len(self.ending)]), 0)
        return join(table, last, np.stack([np.arange(len(texts)), np.zeros(len(texts), int)], axis=1))


def load_reranker(folder: pathlib.Path) -> LoadedPairs | None:
    """Loads a Qwen3 language model that answers "yes" or "no".

    The score is the logit of "yes" minus that of "no", after the prompt of Qwen3-Reranker with its default instruction:
    the model's card takes the sigmoid of it. A question takes at most a quarter of the tokens, the answer the others.

    Args:
      folder: folder that transformers wrote.

    Returns:
      A function of question texts and answer texts to the scorer of their pairs; None if there is no such model.

    Raises:
      EndxError: the tokenizer adds tokens to every text or divides "yes" or "no", or a tensor is missing.
    """
    contents = json_files.read_optional(folder / "config.json")
    if contents.get("architectures") != [KIND] or (folder / MODULES).is_file():
        return None
    source = PretrainedEncoder(folder, Head(folder, pooling="last", max_length=None), contents)
    settings = ModelSettings(pretrained=str(folder), pooling="last", sharing="sde", normalize=False)
    settings, sources = fill_in(settings, source), dict.fromkeys(SIDES, source)
    tokenizer = Tokenizer(folder, rows=source.config.vocab_size)
    tokenizer.check_matches(source.config.vocab_size, folder)
    positions = min(source.config.positions or LONGEST, LONGEST)
    answer = Ended(tokenizer, positions - positions // 4 + 1, COLON + " ", tuple(_ids(tokenizer, AFTER)))
    processors = {"question": TextProcessor(tokenizer, positions // 4, BEFORE), "answer": answer}
    classifier = PairClassifier(build_dual_encoder(settings, sources), pooler=None, segments=False)
    towers = stored_params(classifier.model, settings, sources, jax.random.key(0))
    params = {"dual_encoder": towers, "pair": _head(folder, tokenizer)}
    mesh = make_mesh(MeshSettings(), jax.local_devices())
    scorer = PairScorer(classifier, processors, mesh, max(1, TOKENS // positions))
    placed = place(params, state_shardings(params, mesh))

    def load(questions: Sequence[str], answers: Sequence[str]) -> ScorePairs:
        asked = [f"{question}\n<Document>{COLON}" for question in questions]
        return scorer(placed, asked, answers, progress=showing_progress())

    return load


def _head(folder: pathlib.Path, tokenizer: Tokenizer) -> dict:
    """Returns the parameters of a `PairHead` that is the difference of two rows of the language model's last layer."""
    if _ids(tokenizer, ""):
        raise EndxError(f"the tokenizer in {folder} adds tokens to every text, which Qwen3-Reranker's does not")
    tensors = open_tensors(folder)
    scores = next((tensors[name] for name in OUTPUTS if name in tensors), None)
    words = [_ids(tokenizer, word) for word in ("yes", "no")]
    if scores is None or any(len(ids) != 1 for ids in words):
        lacks = (
            f"the weights have none of {', '.join(OUTPUTS)}" if scores is None else '"yes" or "no" is no single token'
        )
        raise EndxError(f"{folder} can't score pairs as Qwen3-Reranker does: {lacks}")
    yes, no = (scores[ids[0] : ids[0] + 1].T for ids in words)
    return {"classifier": {"kernel": yes - no, "bias": np.zeros(1, np.float32)}}


def _ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer([text], LONGEST).ids.tolist()
