"""Rerankers that are language models, such as Qwen3-Reranker (Zhang et al. 2025), read as pair classifiers."""

import functools
import itertools
import pathlib
from collections.abc import Callable, Sequence

import jax
import numpy as np

from endx_jax import json_files
from endx_jax.data.batches.token_tables import TokenTable
from endx_jax.data.tokenization import TextProcessor, Tokenizer
from endx_jax.data.tokenizer_files import BROKEN, refusing_broken
from endx_jax.errors import EndxError
from endx_jax.methods.pair.classifier import PairClassifier
from endx_jax.methods.pair.cross_encoder import TOKENS, read_towers
from endx_jax.methods.pair.evaluator import ClassifierScorer
from endx_jax.models.config_keys import check_keys
from endx_jax.models.dual_encoder import SIDES
from endx_jax.parallel.mesh import MeshSettings, make_mesh
from endx_jax.pretrained.checkpoint import PretrainedEncoder
from endx_jax.pretrained.module_list import MODULES, read_list
from endx_jax.pretrained.sentence_transformers import NO_LIMIT, max_length, read_usage
from endx_jax.pretrained.weights import open_tensors
from endx_jax.ranking.rerank import PairScorerFactory

# Supported language models, whose token scores have no cap. Without modules.json, only the first, as Qwen3-Reranker.
KINDS = ("Qwen3ForCausalLM", "Qwen2ForCausalLM", "LlamaForCausalLM", "MistralForCausalLM")
LONGEST = 8192  # tokens of a pair, as on the card of Qwen3-Reranker
LETTERS = 16  # characters of a text that are tokenized for each token of a pair's maximum length
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
# The prompt on that card. The model answers with the next token, "yes" or "no".
CARD = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n<Instruct>: {}\n<Query>: ',
    "\n<Document>: ",
    "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
)
# Names of the scores of all tokens, or of the token table if they are one.
OUTPUTS = ("lm_head.weight", "model.embed_tokens.weight")
# Texts of a pair that show where a chat template puts them.
MARKS = ("first-4f1c", "second-4f1c")


class PromptScorer(ClassifierScorer):
    """Scorer of pairs that are written as one text; if it is too long, the end of the answer is cut."""

    def __init__(self, classifier: PairClassifier, tokenizer: Tokenizer, around: Sequence[str], length: int):
        """Sets tokenizer, texts before, between and after a pair, and maximum length; else as in `ClassifierScorer`."""
        processors = dict.fromkeys(SIDES, TextProcessor(tokenizer, NO_LIMIT))
        mesh = make_mesh(MeshSettings(), jax.local_devices())
        super().__init__(classifier, processors, mesh, max(1, TOKENS // length), limit=length)
        self._tokenizer, self._around, self._length = tokenizer, around, length

    def tokenized(self, questions: Sequence[str], answers: Sequence[str]) -> Callable[[np.ndarray], TokenTable]:
        """Returns a function from int [n, 2], rows of questions and of answers, to the texts of the pairs."""
        (before, between, after), most = self._around, LETTERS * self._length
        ending = np.array(_ids(self._tokenizer, after), np.int32)

        @functools.cache  # a request has many answers to one question
        def asked(q: int) -> tuple[str, np.ndarray]:
            text = f"{before}{questions[q][:most]}{between}"
            return text, self._tokenizer([text], NO_LIMIT).ids

        def written(pairs: np.ndarray) -> TokenTable:
            starts = [asked(q) for q in pairs[:, 0].tolist()]
            # No answer is read if the text before fills the pair. It changes only ids of `between`, at most one a byte.
            full = [len(ids) - len(between.encode()) > self._length for _, ids in starts]
            ends = (f"{answers[a][:most]}{after}" for a in pairs[:, 1].tolist())
            texts = ["" if fills else text + end for (text, _), end, fills in zip(starts, ends, full, strict=True)]
            table = self._tokenizer(texts, NO_LIMIT)
            read = (table.ids[start:end] for start, end in itertools.pairwise(table.offsets))
            rows = [ids if fills else row for (_, ids), row, fills in zip(starts, read, full, strict=True)]
            room, cut = self._length - len(ending), np.array([len(row) > self._length for row in rows])
            rows = [np.append(row[:room], ending) if longer else row for row, longer in zip(rows, cut, strict=True)]
            return TokenTable.from_lengths(np.concatenate(rows), np.array([*map(len, rows)]), table.pad_id, cut)

        return written


def load_reranker(folder: pathlib.Path) -> PairScorerFactory | None:
    """Loads a language model that answers whether an answer fits a question: Qwen3-Reranker, or one with a LogitScore.

    The score is the logit of "yes" minus that of "no", or of the tokens that a LogitScore names, after the folder's
    chat template for a query and a document, or, without one, the prompt on the card of Qwen3-Reranker. (The card
    applies the sigmoid to the score.) The instruction is the folder's default prompt, else the card's.

    Args:
      folder: folder that transformers or sentence-transformers wrote.

    Returns:
      A function of question texts and answer texts to the scorer of their pairs; None if there is no such model.

    Raises:
      EndxError: the tokenizer adds tokens to every text or divides "yes" or "no", a tensor is missing, or a file has
        keys that are not supported.
    """
    contents = json_files.read_optional(folder / "config.json")
    modules = read_list(folder) if (folder / MODULES).is_file() else []
    if [module.kind for module in modules] != ["Transformer", "LogitScore"][: 2 * bool(modules)]:
        return None
    if contents.get("architectures") not in [[kind] for kind in (KINDS if modules else KINDS[:1])]:
        return None
    source, towers, params = read_towers(folder, contents, "last")
    tokenizer = Tokenizer(folder, rows=source.config.vocab_size)
    tokenizer.check_matches(source.config.vocab_size, folder)
    lengths = (source.config.positions, max_length(folder, "question", "text-generation"), LONGEST)
    around = _around(source, tokenizer, read_usage(folder, "CrossEncoder").default_prompt)
    head = _head(folder, tokenizer, modules[1].folder if modules else None)
    classifier = PairClassifier(towers, pooler=None, segments=False)
    scorer = PromptScorer(classifier, tokenizer, around, min(length for length in lengths if length))
    return scorer.with_params({"dual_encoder": params, "pair": head})


def _around(source: PretrainedEncoder, tokenizer: Tokenizer, instruction: str) -> Sequence[str]:
    """Returns the texts before, between and after a pair, by the chat template if it has places for both texts."""
    roles = [*[("system", instruction)] * bool(instruction), *zip(("query", "document"), MARKS, strict=True)]
    with refusing_broken(source.folder, *BROKEN):
        text = tokenizer.chat([{"role": role, "content": content} for role, content in roles])
    if [text.count(mark) for mark in MARKS] == [1, 1] and text.index(MARKS[0]) < text.index(MARKS[1]):
        before, _, rest = text.partition(MARKS[0])
        between, _, after = rest.partition(MARKS[1])
        return before, between, after
    if source.hugging_face["model_type"] != "qwen3":
        raise EndxError(f"{source.folder}: its chat template, if any, has no places for the roles query and document")
    return CARD[0].format(instruction or INSTRUCTION), *CARD[1:]


def _head(folder: pathlib.Path, tokenizer: Tokenizer, logit_score: pathlib.Path | None) -> dict:
    """Returns the parameters of a `PairHead` that is the difference of two rows of the language model's last layer."""
    if _ids(tokenizer, ""):
        raise EndxError(f"the tokenizer in {folder} adds tokens to every text, which Qwen3-Reranker's does not")
    tensors = open_tensors(folder)
    scores = next((tensors[name] for name in OUTPUTS if name in tensors), None)
    words = [_ids(tokenizer, word) for word in ("yes", "no")]
    if logit_score:
        file = logit_score / "config.json"
        stated = json_files.read_json_file(file)
        check_keys(stated, file, {"module_input_name": ("causal_logits",)}, "true_token_id false_token_id")
        names = ["true_token_id", *["false_token_id"] * (stated.get("false_token_id") is not None)]
        size = scores.shape[0] - 1 if scores else 0
        words = [[json_files.as_whole(stated.get(name), f"{file}: {name!r}", most=size)] for name in names]
    if scores is None or any(len(ids) != 1 for ids in words):
        lacks = (
            f"the weights have none of {', '.join(OUTPUTS)}" if scores is None else '"yes" or "no" is no single token'
        )
        raise EndxError(f"{folder} can't score pairs as Qwen3-Reranker does: {lacks}")
    yes, *no = (scores[ids[0] : ids[0] + 1].T for ids in words)
    return {"classifier": {"kernel": yes - sum(no), "bias": np.zeros(1, np.float32)}}


def _ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer([text], LONGEST).ids.tolist()
