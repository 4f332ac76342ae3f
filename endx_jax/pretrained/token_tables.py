"""Token embeddings of a pretrained model of any architecture, for a new encoder."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from endx_jax.errors import EndxError
from endx_jax.models.config_keys import MOST_TOKENS, fraction, read_keys, whole
from endx_jax.pretrained.checkpoint import PretrainedEncoder, describe
from endx_jax.pretrained.weights import open_tensors

# By field of `TokensConfig`, with the names that architectures have for it in their config.json.
KEYS = {
    "vocab_size": whole("vocab_size", most=MOST_TOKENS),
    "width": whole("embedding_size", "hidden_size", "d_model", "n_embd", "dim"),
    "dropout": fraction("hidden_dropout_prob", "dropout_rate", "resid_pdrop", "dropout", default=0.1),
    "attention_dropout": fraction(
        "attention_probs_dropout_prob", "dropout_rate", "attn_pdrop", "attention_dropout", default=0.1
    ),
    "pad_id": whole("pad_token_id", default=0, least=0, most=MOST_TOKENS),
}
POSITIONS = ("max_position_embeddings", "n_positions")
# Ends of the token table's name in the weights.
TABLES = (
    "word_embeddings.weight",
    "shared.weight",
    "embed_tokens.weight",
    "wte.weight",
    "tok_embeddings.weight",
    "embedding.weight",
)


@dataclasses.dataclass(frozen=True)
class TokensConfig:
    """Token and dropout settings in a `config.json` of any architecture.

    Attributes:
      vocab_size: V, rows of the token table.
      width: D, its columns.
      positions: the longest input in tokens; None if not stated.
      dropout: of hidden layers, 0.1 if not stated.
      attention_dropout: of attention weights, 0.1 if not stated.
      initializer_range: standard deviation of newly drawn token vectors.
      pad_id: `pad_token_id`.
    """

    vocab_size: int
    width: int
    positions: int | None = None
    dropout: float = 0.1
    attention_dropout: float = 0.1
    initializer_range: float = 0.02
    pad_id: int = 0

    @classmethod
    def from_hugging_face(cls, config: Mapping, where: object) -> "TokensConfig":
        """Reads the contents of a `config.json`; `where` is the file, for messages.

        Raises:
          EndxError: for a missing key, or a number out of bounds.
        """
        limited = any(config.get(name) is not None for name in POSITIONS)
        keys = KEYS | ({"positions": whole(*POSITIONS)} if limited else {})
        numbers: dict[str, Any] = read_keys(config, keys, where)
        return cls(**numbers)


class PretrainedTokens(PretrainedEncoder):
    """Pretrained model of which only the tokenizer and the token table are used."""

    @property
    def config(self) -> TokensConfig:  # type: ignore[override]  # there is no encoder
        """Description of the tokens."""
        return TokensConfig.from_hugging_face(self.hugging_face, self.folder / "config.json")

    def stored_params(self, *, scan_layers: bool = False) -> dict:
        """Returns the token table as a `Stored` array: `{"token_embedder": {"embedding": float32 [V, D]}}`.

        Raises:
          EndxError: the weights hold none, or its shape does not match `config.json`.
        """
        del scan_layers
        tensors, shape = open_tensors(self.folder), (self.config.vocab_size, self.config.width)
        name = next((name for end in TABLES for name in sorted(tensors) if name.endswith(end)), None)
        if name is None:
            raise EndxError(f"{self.folder}: no tensor's name ends like a token table's: {', '.join(TABLES)}")
        if tensors[name].shape != shape:
            raise EndxError(f"{self.folder}: {name} has shape {tensors[name].shape} where config.json asks for {shape}")
        return {"token_embedder": {"embedding": tensors[name]}}


def load_tokens(name: str) -> PretrainedTokens:
    """Finds the pretrained model `name` (see `locate`) and reads the description of its tokens.

    Raises:
      EndxError: it can't be found, or its `config.json` lacks the number or the width of its tokens.
    """
    tokens = PretrainedTokens(**describe(name))
    _ = tokens.config  # raises here, not later
    return tokens
