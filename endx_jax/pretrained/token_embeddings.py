"""Reader of the token embeddings of pretrained models of any architecture, as input of a new encoder."""

from endx_jax.errors import EndxError
from endx_jax.models.static import TokensConfig
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
