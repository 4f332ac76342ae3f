"""Token embeddings of a pretrained model of any architecture, for a new encoder."""

import dataclasses

from endx_jax.errors import EndxError
from endx_jax.models.config_keys import MOST_TOKENS, HuggingFaceConfig, fraction, whole
from endx_jax.pretrained.checkpoint import PretrainedEncoder, describe
from endx_jax.pretrained.weights import open_tensors

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
class TokensConfig(HuggingFaceConfig):
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

    vocab_size: int = whole("vocab_size", most=MOST_TOKENS)
    width: int = whole("embedding_size", "hidden_size", "d_model", "n_embd", "dim")
    positions: int | None = whole("max_position_embeddings", "n_positions", default=None)
    dropout: float = fraction("hidden_dropout_prob", "dropout_rate", "resid_pdrop", "dropout", default=0.1)
    attention_dropout: float = fraction(
        "attention_probs_dropout_prob", "dropout_rate", "attn_pdrop", "attention_dropout", default=0.1
    )
    initializer_range: float = 0.02
    pad_id: int = whole("pad_token_id", default=0, least=0, most=MOST_TOKENS)


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
