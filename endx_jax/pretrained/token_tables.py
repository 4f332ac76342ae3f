"""The token embeddings of a pretrained model of any architecture, for an encoder that is newly drawn."""

import dataclasses
from collections.abc import Mapping

from endx_jax.errors import EndxError
from endx_jax.pretrained.checkpoint import PretrainedEncoder, describe
from endx_jax.pretrained.weights import open_tensors

# How architectures call the same thing, in their config.json ...
WIDTHS = ("embedding_size", "hidden_size", "d_model", "n_embd", "dim")
POSITIONS = ("max_position_embeddings", "n_positions")
DROPOUTS = ("hidden_dropout_prob", "dropout_rate", "resid_pdrop", "dropout")
ATTENTION_DROPOUTS = ("attention_probs_dropout_prob", "dropout_rate", "attn_pdrop", "attention_dropout")
# ... and how the token table's name in the weights ends.
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
    """What a `config.json` of any architecture says about its tokens, and about dropout.

    Attributes:
      vocab_size: V, rows of the token table.
      width: D, its columns.
      positions: the longest input in tokens; None where it does not say.
      dropout: of hidden layers, 0.1 where it does not say.
      attention_dropout: of attention weights, 0.1 where it does not say.
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
        """Reads the contents of a `config.json`; EndxError when it lacks the vocabulary or the width."""
        width = _first(config, WIDTHS)
        if width is None or "vocab_size" not in config:
            raise EndxError(f"{where}: config.json lacks vocab_size, or the width ({' or '.join(WIDTHS)})")
        return cls(
            vocab_size=config["vocab_size"],
            width=width,
            positions=_first(config, POSITIONS),
            dropout=_first(config, DROPOUTS, 0.1),
            attention_dropout=_first(config, ATTENTION_DROPOUTS, 0.1),
            pad_id=config.get("pad_token_id") or 0,
        )


class PretrainedTokens(PretrainedEncoder):
    """A pretrained model of which the tokenizer and the token table are used, and nothing else."""

    @property
    def config(self) -> TokensConfig:  # type: ignore[override]  # there is no encoder
        """What is known of the tokens."""
        return TokensConfig.from_hugging_face(self.hugging_face, self.folder)

    def stored_params(self, *, scan_layers: bool = False) -> dict:
        """The token table, to be read from its file: `{"token_embedder": {"embedding": float32 [V, D]}}`.

        Raises:
          EndxError: when the weights hold none, or one of another shape than `config.json` says.
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
    """Finds the pretrained model `name` (see `locate`) and reads what describes its tokens.

    Raises:
      EndxError: when it can't be had, or its `config.json` does not say how many tokens it has and how wide they are.
    """
    tokens = PretrainedTokens(**describe(name))
    _ = tokens.config  # raises here, not later
    return tokens


def _first(config: Mapping, names: tuple[str, ...], default=None):
    """The first of the names that the config has a value for."""
    return next((config[name] for name in names if config.get(name) is not None), default)
