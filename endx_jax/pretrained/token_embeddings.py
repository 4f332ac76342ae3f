"""Reader of the token embeddings of pretrained models of any architecture, as input of a new encoder."""

import dataclasses

from endx_jax.errors import EndxError
from endx_jax.models.config_keys import MOST_TOKENS, HuggingFaceConfig, float_key, int_key
from endx_jax.pretrained.checkpoint import PretrainedEncoder, encoder_fields
from endx_jax.pretrained.weights import open_tensors

# Suffixes of the token table's tensor name.
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
      vocab_size: number of rows V of the token table.
      width: number of columns D of the token table.
      positions: maximum input length in tokens; None if not stated.
      dropout: dropout rate of hidden layers; 0.1 if not stated.
      attention_dropout: dropout rate of attention weights; 0.1 if not stated.
      initializer_range: standard deviation of new token vectors.
      pad_id: id of the padding token.
    """

    vocab_size: int = int_key("vocab_size", most=MOST_TOKENS)
    width: int = int_key("embedding_size", "hidden_size", "d_model", "n_embd", "dim")
    positions: int | None = int_key("max_position_embeddings", "n_positions", default=None)
    dropout: float = float_key("hidden_dropout_prob", "dropout_rate", "resid_pdrop", "dropout", default=0.1)
    attention_dropout: float = float_key(
        "attention_probs_dropout_prob", "dropout_rate", "attn_pdrop", "attention_dropout", default=0.1
    )
    initializer_range: float = 0.02
    pad_id: int = int_key("pad_token_id", default=0, least=-1, most=MOST_TOKENS)

    @property
    def table_width(self) -> int:
        """Columns of the token table."""
        return self.width


class PretrainedTokens(PretrainedEncoder):
    """A pretrained model of which only the tokenizer and the token table are used."""

    @property
    def config(self) -> TokensConfig:  # type: ignore[override]  # there is no encoder
        """Config of the tokens."""
        return TokensConfig.from_hugging_face(self.hugging_face, self.folder / "config.json")

    def stored_params(self) -> dict:
        """Returns the token table, read on demand: `{"token_embedder": {"embedding": float32 [V, D]}}`."""
        tensors, shape = open_tensors(self.folder), (self.config.vocab_size, self.config.width)
        name = next((name for end in TABLES for name in sorted(tensors) if name.endswith(end)), None)
        if name is None:
            raise EndxError(f"{self.folder} has no token table: no tensor's name ends with {' or '.join(TABLES)}")
        if tensors[name].shape != shape:
            raise EndxError(f"{self.folder}: {name} has shape {tensors[name].shape}; config.json requires {shape}")
        return {"token_embedder": {"embedding": tensors[name]}}


def load_tokens(name: str) -> PretrainedTokens:
    """Finds the pretrained model `name` (see `locate`) and reads the description of its tokens.

    Raises:
      EndxError: it cannot be found, or its `config.json` lacks the vocabulary size or width.
    """
    tokens = PretrainedTokens(**encoder_fields(name))
    _ = tokens.config  # raises early
    return tokens
