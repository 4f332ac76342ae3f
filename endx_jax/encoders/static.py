"""Static token vectors, in the format that `pretrained.static` writes."""

from endx_jax.encoders.architecture import Architecture, Names
from endx_jax.models.static import NoEncoder, StaticConfig

STATIC = Architecture(
    StaticConfig,
    "",
    lambda config: Names({"token_embedder": "embedding"}),
    encoder=lambda config, *_, **__: NoEncoder(),
)
