"""Late interaction in folders of sentence-transformers' MultiVectorEncoder and of PyLate's ColBERT."""

import pathlib
import string

from endx_jax import json_files
from endx_jax.models.config_keys import check_keys
from endx_jax.models.dual_encoder import TASKS
from endx_jax.models.token_embeddings import UNPOOLED, TokenPooling, TokenSettings

# Kinds of models in the file that states their use.
KIND, PYLATE = "MultiVectorEncoder", "ColBERT"
# Accepted names of their similarity, the default first. PyLate 1.0 wrote `cosine`, but used MaxSim.
SIMILARITIES = {KIND: ("maxsim", "MaxSim", None), PYLATE: ("MaxSim", "maxsim", "cosine", None)}
POOLING = "HierarchicalTokenPooling"
ORDER = ("Transformer", "Dense", "MultiVectorMask", "Normalize", POOLING)
OVER_TOKENS = ("token_embeddings",)
# PyLate's own keys in the file that states a model's use, and its lengths by default.
PREFIXES = {"question": "query_prefix", "answer": "document_prefix"}
LENGTHS = {"question": ("query_length", 32), "answer": ("document_length", 180)}
FLAGS = "attend_to_expansion_tokens do_query_expansion skiplist_words"
PYLATE_KEYS = " ".join([*PREFIXES.values(), *(name for name, _ in LENGTHS.values()), FLAGS])
MASK = {"skiplist_tasks": (["document"], "document"), "keep_only_token_ids": (None,)}
POOLED = {"tasks": (["document"], "document"), "normalize_embeddings": (False, True)}
EXPANSION = {"strategy": ("fixed", "min"), "attend": (False, True), "token": (None, "[MASK]", "<mask>")}


def late_kind(usage: dict) -> str | None:
    """Returns the kind of late interaction that a model's usage file states; None for other models.

    PyLate on sentence-transformers before version 5 wrote its prefixes without a kind.
    """
    kind = usage.get("model_type", PYLATE if usage.keys() >= {*PREFIXES.values()} else None)
    return kind if kind in [*SIMILARITIES] else None


def read_tokens(
    transformer: dict, mask: pathlib.Path, where: object, side: str, limit: int | None
) -> tuple[TokenSettings, int | None]:
    """Returns which tokens of a MultiVectorEncoder's texts have an embedding, and the maximum length of a side's texts.

    Args:
      transformer: contents of the Transformer's file.
      mask: the file of the MultiVectorMask, which may be missing.
      where: the Transformer's file, for messages.
      side: side of the texts.
      limit: maximum length without query expansion.
    """
    contents = json_files.read_optional(mask)
    check_keys(contents, mask, MASK, "skiplist_words")
    skip = _words(contents.get("skiplist_words") or [], mask)
    stated = transformer.get("query_expansion")
    if stated is None:
        return TokenSettings(skip=skip), limit
    where = f"{where}: 'query_expansion'"
    stated = json_files.as_object(stated, where)
    check_keys(stated, where, EXPANSION, "length")
    expand = json_files.as_whole(stated.get("length"), f"{where}: 'length'", least=1)
    if side == "question" and stated.get("strategy") != "min":
        limit = expand
    elif side == "question" and limit is not None:
        limit = max(limit, expand)
    return TokenSettings(skip, expand, stated.get("attend", False)), limit


def read_token_pooling(folder: pathlib.Path | None) -> TokenPooling:
    """Reads a HierarchicalTokenPooling; without a folder, nothing is pooled."""
    if folder is None:
        return UNPOOLED
    contents = json_files.read_json_file(file := folder / "config.json")
    check_keys(contents, file, POOLED, "pool_factor num_protected_tokens")
    factor = json_files.as_number(contents.get("pool_factor", 1.0), f"{file}: 'pool_factor'", least=1, most=1e6)
    protected = json_files.as_whole(contents.get("num_protected_tokens", 1), f"{file}: 'num_protected_tokens'")
    return TokenPooling(factor, protected, contents.get("normalize_embeddings", False))


def read_pylate(usage: dict, where: object, side: str) -> tuple[TokenSettings, int]:
    """Returns the tokens with an embedding and the maximum length of a side, as stated by the usage file of PyLate."""
    lengths = {}
    for each, (name, default) in LENGTHS.items():
        stated = usage.get(name)
        lengths[each] = json_files.as_whole(default if stated is None else stated, f"{where}: {name!r}", least=1)
    words = usage.get("skiplist_words")
    skip = _words([*string.punctuation] if words is None else words, where)
    expands = usage.get("do_query_expansion") is not False
    attend = expands and usage.get("attend_to_expansion_tokens") is True
    return TokenSettings(skip, lengths["question"] if expands else 0, attend), lengths[side]


def with_prefixes(usage: dict, prompts: dict[str, str], where: object) -> dict[str, str]:
    """Returns the prompts by name, each after PyLate's prefix, such as `[Q] `, which is one token."""
    prompts = dict(prompts)
    for side, name in PREFIXES.items():
        stated = usage.get(name) or ""
        prefix = json_files.as_text(stated, f"{where}: {name!r}", may_be_empty=True, strip=False)
        prompts[TASKS[side]] = prefix + prompts.get(TASKS[side], "").removeprefix(prefix)
    return prompts


def _words(words: object, where: object) -> tuple[str, ...]:
    listed = json_files.as_list(words, f"{where}: 'skiplist_words'")
    return tuple(json_files.as_text(word, f"{where}: a word of 'skiplist_words'", strip=False) for word in listed)
