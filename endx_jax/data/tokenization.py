"""Tokenizers, and text processors, which convert texts to token tables."""

import dataclasses
import functools
import hashlib
import importlib.metadata
import itertools
import json
import pathlib
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from endx_jax import json_files
from endx_jax.data.batches.token_tables import TokenTable
from endx_jax.data.languages import ENGLISH, detect, is_latin
from endx_jax.data.tokenizer_files import (
    BROKEN,
    forget_length,
    load_with_transformers,
    read_tokenizer,
    refusing_broken,
)
from endx_jax.errors import EndxError

# Number of texts that `describe_unfit` reads, and letters per piece below which it warns; English pieces have about 5.
SAMPLE, SHORT = 200, 3.0
MULTILINGUAL = "sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2"  # needs no prompts
CHUNK = 10_000  # texts that are tokenized at once: enough for all cores, few enough to limit memory


class Tokenizer:
    """Hugging Face tokenizer.

    Attributes:
      folder: folder it was loaded from.
      pad_id: padding id.
      size: largest id plus one, added and special tokens included.
      unknown_id: id that replaces those of added tokens without a row in the token table; None if all have one.
    """

    def __init__(
        self,
        folder: pathlib.Path | str,
        *,
        append_eos: bool = False,
        rows: int | None = None,
        whole: Sequence[str] = (),
    ):
        """Reads the tokenizer.

        Args:
          folder: folder of its files.
          append_eos: ends each text with EOS, if the tokenizer's template ends with no special token.
          rows: rows of the token table; added tokens with larger ids become the unknown token, if there is one. Gemma's
            text models have the token of an image without a row for it.
          whole: texts whose beginning is one token wherever it is in the vocabulary, such as `[unused0] `.

        Raises:
          EndxError: the folder holds no usable tokenizer, or it has no EOS to append.
        """
        self.folder = pathlib.Path(folder)
        self._appends_eos, self._rows, self._whole = append_eos, rows, tuple(whole)
        read = read_tokenizer(self.folder)
        self._backend, self._special, self._truncation_side = read.backend, read.special, read.truncation_side
        self._lock = threading.Lock()  # truncation is state of the backend, which only one thread may change
        with refusing_broken(self.folder, *BROKEN):
            self._adapt(self._backend)
            # The special tokens of an encoded text may have ids that are not in the vocabulary.
            around = self._loaded([""])["input_ids"][0] if self._backend is None else self._backend.encode("").ids
            ids = {*self._vocabulary.values(), *around}
            added = set() if rows is None or self._backend is None else {*self._backend.get_added_tokens_decoder()}
            without_row = {id_ for id_ in added - {*around} if id_ >= rows}
            self.unknown_id = self._id_of("unk_token") if without_row else None
            self.size = 1 + max(ids if self.unknown_id is None else ids - without_row, default=-1)
        pad_id = self._id_of("pad_token")
        if pad_id is None and self._backend is not None:  # as for most language models
            pad_id = self._id_of("eos_token")
        if pad_id is None:
            raise EndxError(f"the tokenizer in {folder} has no padding token; set one in its tokenizer_config.json")
        self.pad_id: int = pad_id

    def __reduce__(self):
        """Pickles the folder, so that processes that tokenize load the tokenizer there."""
        return functools.partial(Tokenizer, append_eos=self._appends_eos, rows=self._rows, whole=self._whole), (
            self.folder,
        )

    @functools.cached_property
    def _loaded(self) -> Any:
        """The tokenizer of transformers, which only some methods need."""
        loaded = load_with_transformers(self.folder)
        with refusing_broken(self.folder, *BROKEN):
            self._adapt(loaded.backend_tokenizer if loaded.is_fast else None)
            if loaded.pad_token_id is None and loaded.is_fast:
                loaded.pad_token = loaded.eos_token
        return loaded

    @property
    def _vocabulary(self) -> dict[str, int]:
        return self._loaded.get_vocab() if self._backend is None else self._backend.get_vocab()

    def _token(self, name: str) -> str | None:
        """Returns a special token, such as `eos_token`."""
        return self._special.get(name, (None, None))[0]

    def _id_of(self, name: str) -> int | None:
        """Returns the id of a special token."""
        return self._special.get(name, (None, None))[1]

    @functools.cached_property
    def fingerprint(self) -> str | None:
        """sha256 of the state that determines its ids; None for tokenizers written in Python."""
        if self._backend is None:
            return None
        with self._lock:
            forget_length(self._backend)
            special = self._backend.encode_special_tokens
            unknown = "" if self.unknown_id is None else f" {self._rows}"
            state = f"{self._truncation_side} {special} {self._backend.to_str()}{unknown}"
        return hashlib.sha256(state.encode()).hexdigest()

    @property
    def identity(self) -> str | None:
        """Fingerprint and the library's version, which may change ids as well; None without a fingerprint."""
        if self.fingerprint is None:
            return None
        return f"{self.fingerprint} tokenizers {importlib.metadata.version('tokenizers')}"

    def same_ids(self, other: "Tokenizer") -> bool:
        """Returns true if two tokenizers are known to give the same ids for every text."""
        return self is other or (self.fingerprint is not None and self.fingerprint == other.fingerprint)

    def ids_of(self, tokens: Sequence[str], what: str) -> tuple[int, ...]:
        """Returns the ids of tokens; raises EndxError, which names them as `what`, if the tokenizer lacks one."""
        vocabulary = self._vocabulary
        if missing := [token for token in tokens if token not in vocabulary]:
            raise EndxError(
                f"{what} names {json_files.format_names(missing)}, which the tokenizer in {self.folder} lacks: "
                "leave them out"
            )
        return tuple(vocabulary[token] for token in tokens)

    def tokens_of(self, ids: Sequence[int]) -> list[str]:
        """Returns the tokens of ids."""
        names = {id_: token for token, id_ in self._vocabulary.items()}
        return [names[id_] for id_ in ids]

    @property
    def mask_id(self) -> int:
        """Id of [MASK]; raises EndxError if there is none."""
        if (mask_id := self._id_of("mask_token")) is None:
            raise EndxError(
                f"the tokenizer in {self.folder} has no [MASK] to fill questions up: set model.tokens.expand=0"
            )
        return mask_id

    def check_matches(self, vocab_size: int, where: object) -> None:
        """Raises EndxError if the tokenizer has ids beyond the `vocab_size` rows of the encoder in the folder `where`.

        Padding ids are not compared, since padding is masked: published folders have one id in `config.json` and
        another in the tokenizer's files.
        """
        if self.size > vocab_size:
            raise EndxError(
                f"the tokenizer in {self.folder} does not match the weights in {where}: its largest id is "
                f"{self.size - 1} and the weights have {vocab_size} rows; use the tokenizer files that were published "
                "with these weights"
            )

    def __call__(self, texts: Sequence[str], max_length: int) -> TokenTable:
        """Tokenizes texts, each truncated to `max_length` tokens, special tokens included."""
        parts, lengths, truncated = [np.zeros(0, np.int32)], list[int](), list[bool]()
        for start in range(0, len(texts), CHUNK):
            rows, longer = self._encode(list(texts[start : start + CHUNK]), max_length)
            lengths += map(len, rows)
            parts.append(np.fromiter(itertools.chain.from_iterable(rows), np.int32))
            truncated += longer
        ids = np.concatenate(parts)
        if self._rows is not None and self.unknown_id is not None:
            ids[ids >= self._rows] = self.unknown_id
        return TokenTable.from_lengths(ids, np.asarray(lengths, np.int64), self.pad_id, np.asarray(truncated, bool))

    def describe_unfit(self, texts: Iterable[str], name: str) -> list[str]:
        """Returns a warning if the tokenizer of the model `name` does not know the language of the texts, else no line.

        The pieces are then unknown or single characters, or on average shorter than `SHORT` letters. Chinese, whose own
        tokenizers have single characters, and Vietnamese, whose words are short, are judged by unknown pieces alone.
        """
        texts = list(itertools.islice(texts, SAMPLE))
        language = detect(texts)
        if self._backend is None or language == ENGLISH:
            return []
        with self._lock, refusing_broken(self.folder):
            forget_length(self._backend)
            encoded = [encoding.tokens for encoding in self._backend.encode_batch(texts, add_special_tokens=False)]
        pieces = [piece.removeprefix("##").strip("▁Ġ") for piece in itertools.chain.from_iterable(encoded)]
        unknown = pieces.count(str(self._token("unk_token")))
        pieces = [piece for piece in pieces if any(map(str.isalpha, piece))]
        single = sum(len(piece) == 1 for piece in pieces)
        count, letters = max(len(pieces), 1), sum(map(len, pieces))
        poor = unknown > 0.2 * count
        if language not in ("chinese", "vietnamese"):
            poor |= unknown + single > 0.7 * count or (is_latin(language) and letters < SHORT * count)
        return [
            f"warning: the tokenizer of {name} splits these texts, in {language.title()}, into {count:,} pieces of "
            f"{letters / count:.1f} characters on average, {unknown:,} of them unknown: it does not know the language; "
            f"take a multilingual model, such as {MULTILINGUAL}"
        ] * poor

    def joining(self) -> tuple[list[int], bool]:
        """Returns how the tokenizer joins two texts, if it does so as BERT's and RoBERTa's tokenizers do.

        Returns:
          A tuple (between, segments): the ids that take the place of the second text's first token, and true if the
          second text is of another segment.

        Raises:
          EndxError: it joins texts in another way.
        """
        with self._lock:
            alone, pair = self._loaded("a")["input_ids"], self._loaded("a", "a")  # an empty second text is ignored
        joined = pair["input_ids"]
        ending = joined[len(joined) - len(alone) + 1 :]
        if len(alone) < 2 or joined[: len(alone)] != alone or ending != alone[1:]:
            raise EndxError(
                f"the tokenizer in {self.folder} joins two texts as {joined} and begins and ends one as {alone}; only "
                "pairs of texts that each end as one alone can be scored"
            )
        return joined[len(alone) : len(joined) - len(ending)], any(pair.get("token_type_ids", ()))

    def chat(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Returns messages as the chat template writes them; an empty string without a template, or if it fails.

        Raises:
          EndxError: there is a template, and jinja2 is not installed.
        """
        if not self._loaded.chat_template:
            return ""
        try:
            import jinja2
        except ImportError:
            raise EndxError(f"the chat template in {self.folder} needs jinja2: pip install jinja2") from None
        try:
            return self._loaded.apply_chat_template(messages, tokenize=False, add_generation_prompt=False)
        except jinja2.TemplateError:  # most templates refuse roles that they do not know
            return ""

    def save(self, folder: pathlib.Path) -> None:
        """Writes the tokenizer's files into `folder`."""
        with self._lock:
            self._loaded.save_pretrained(str(folder))

    def _encode(self, texts: list[str], length: int) -> tuple[list[list[int]], list[bool]]:
        """Returns the ids of texts, truncated to `length`, and whether each was truncated."""
        if self._backend is None:
            whole = self._loaded(texts)["input_ids"]
            longer = [len(ids) > length for ids in whole]
            return self._loaded(texts, truncation=True, max_length=length)["input_ids"], longer
        with self._lock, refusing_broken(self.folder):
            self._backend.no_padding()
            self._backend.enable_truncation(length, direction=self._truncation_side)
            # `encode_batch_fast` omits the offsets of tokens, which would take a third of the time.
            try:
                encodings = self._backend.encode_batch_fast(texts)
            except TypeError:  # half a surrogate pair in a text, which JSON escapes can leave, becomes U+FFFD
                paired = [text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") for text in texts]
                encodings = self._backend.encode_batch_fast(paired)
        if any(len(encoding) > length for encoding in encodings):
            raise EndxError(f"the tokenizer in {self.folder}: its template makes texts longer than {length} tokens")
        longer = [len(encoding) == length and bool(encoding.overflowing) for encoding in encodings]
        return [encoding.ids for encoding in encodings], longer

    def _adapt(self, backend: Any) -> None:
        """Changes a tokenizer as the arguments of `__init__` ask for; None is one that is written in Python."""
        self._extend_template(backend)
        if backend is not None:
            self._keep_whole(backend)
            forget_length(backend)  # which it would write into its file

    def _extend_template(self, backend: Any) -> None:
        """Adds BOS and EOS to texts where the settings ask for it, also in the files that `save` writes."""
        # transformers 5 reads these settings only if there is no `tokenizer.json`, whose template published folders
        # such as e5-mistral did not change.
        config = json_files.read_optional(self.folder / "tokenizer_config.json")
        ends = self._appends_eos or config.get("add_eos_token") is True
        if not ends and config.get("add_bos_token") is not True:
            return
        begin = self._token("bos_token") if config.get("add_bos_token") is True else None
        end = self._token("eos_token") if ends else None
        if backend is not None and (begin or end):
            ids = {token: backend.token_to_id(token) for token in (begin, end) if token}
            backend.post_processor = _extended(backend.post_processor, begin, end, ids)
        if self._appends_eos and (end is None or backend is None):
            lacks = "has no EOS token" if end is None else "is written in Python and can't append EOS"
            raise EndxError(
                f"the tokenizer in {self.folder} {lacks}, whose encoding embeds a text: set eos_token in "
                "tokenizer_config.json, or use a folder of sentence-transformers, which states its pooling"
            )

    def _keep_whole(self, backend: Any) -> None:
        """Adds the first token of each text of `whole` as a special token, which is neither split nor normalized."""
        vocabulary = backend.get_vocab() if self._whole else {}
        for text in self._whole:
            token = next((token for token in (text, *text.split(None, 1)[:1]) if token in vocabulary), None)
            if token is not None and backend.encode(token, add_special_tokens=False).tokens != [token]:
                import tokenizers

                backend.add_special_tokens([tokenizers.AddedToken(token, normalized=False, special=True)])


def _extended(processor, begin: str | None, end: str | None, ids: Mapping[str, int]):
    """Returns a post-processor that also begins and ends texts with these tokens, where no special token is yet."""
    import tokenizers

    # The library reads and writes post-processors only as parts of tokenizers.
    holder = tokenizers.Tokenizer(tokenizers.models.BPE())
    if processor is not None:
        holder.post_processor = processor
    state = json.loads(holder.to_str())
    existing = state["post_processor"] or {"type": "Sequence", "processors": []}
    steps = existing["processors"] if existing["type"] == "Sequence" else [existing]
    if any(step["type"] in ("BertProcessing", "RobertaProcessing") for step in steps):
        return processor  # they have special tokens on both sides
    template = next((step for step in steps if step["type"] == "TemplateProcessing"), None)
    if template is None:
        texts = [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"]
        template = {"type": "TemplateProcessing", "single": texts[:1], "pair": texts, "special_tokens": {}}
        state["post_processor"] = {"type": "Sequence", "processors": [*steps, template]}
    begin = None if "SpecialToken" in template["single"][0] else begin
    end = None if "SpecialToken" in template["single"][-1] else end

    def special(token: str | None, piece: dict) -> dict | None:
        return {"SpecialToken": {"id": token, "type_id": piece["Sequence"]["type_id"]}} if token else None

    for form in ("single", "pair"):
        around = [
            (special(begin, piece), piece, special(end, piece)) if "Sequence" in piece else (piece,)
            for piece in template[form]
        ]
        template[form] = [piece for pieces in around for piece in pieces if piece]
    for token in filter(None, (begin, end)):
        template["special_tokens"][token] = {"id": token, "ids": [ids[token]], "tokens": [token]}
    return tokenizers.Tokenizer.from_str(json.dumps(state)).post_processor


@dataclasses.dataclass(frozen=True)
class TextOptions:
    """Options of the texts of one side, which settings, model folders, token stores and identities have by these names.

    Attributes:
      length: maximum length of a text in tokens, prompt and special tokens included; longer texts are truncated.
      prompt: string prepended to every text.
    """

    length: int
    prompt: str = ""

    def stated(self) -> dict[str, Any]:
        """Returns the options by name."""
        return {"prompt": self.prompt, "length": self.length}


@dataclasses.dataclass(frozen=True)
class _WithTokenizer:
    tokenizer: Tokenizer


@dataclasses.dataclass(frozen=True)
class TextProcessor(TextOptions, _WithTokenizer):
    """Tokenizer of a tower's texts, with their options: `TextProcessor(tokenizer, length, prompt, ...)`."""

    def __call__(self, texts: Sequence[str]) -> TokenTable:
        """Tokenizes N texts."""
        return self.tokenizer([self.prompt + text for text in texts] if self.prompt else texts, self.length)

    def describe_cut(self, cut: int, count: int, side: str = "answer", *, split: bool = False) -> str:
        """Returns a line about `cut` of `count` texts of a side, or passages of `split` ones, and what to do."""
        limit = f"reach the limit of {self.length} tokens: only their beginnings are embedded"
        train = f"train with a larger data.{side}_length"
        if split:
            return f"{cut:,} of {count:,} passages {limit}, and BM25 reads them whole; to embed more, {train}"
        advice = "shorten them" if side == "question" else "split them into passages"
        return f"{cut:,} of {count:,} texts {limit}; {advice}, or {train}"
