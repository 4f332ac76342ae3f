"""A tiny VAE whose towers mix no positions and are quick to compile."""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from endx_jax.methods.vae import VaeObjective, VaeSettings
from endx_jax.models import DualEncoder, Projection, TokenEmbedder, Tower
from endx_jax.models.dropout import dropout
from endx_jax.models.sharing import SHARINGS

WIDTH, LATENT, VOCABULARY = 4, 5, 50
SETTINGS = VaeSettings(match="inbatch", temperature=0.5, decoder="bag_of_words", decoder_width=6)
SETTINGS = dataclasses.replace(SETTINGS, anneal_epochs=0.0, anneal_steps=4, initial_deviation=0.5)


class Encoder(nn.Module):
    """One layer that mixes no positions, with dropout: all that an encoder has, and quick to compile."""

    rate: float = 0.2

    @nn.compact
    def __call__(self, embedded, layout, dropout_keys=None):
        x = jnp.tanh(nn.Dense(WIDTH, name="mlp_up")(embedded))
        return dropout(x, layout.token_keys(dropout_keys), self.rate)


def model(sharing="ade", **changes):
    one = Tower(
        TokenEmbedder(VOCABULARY, WIDTH, initializer_range=1.0), Encoder(), projection=Projection(LATENT), **changes
    )
    return DualEncoder(one, one, SHARINGS[sharing])


@functools.cache
def params_of(sharing, decoder):
    """Parameters that all matter, deviations included; other settings change none of them."""
    objective = VaeObjective(model(sharing), dataclasses.replace(SETTINGS, decoder=decoder))
    drawn = jax.jit(lambda: objective.init(jax.random.key(1), objective.model.init(jax.random.key(0))))()
    draw = np.random.default_rng(0)
    return jax.tree.map(lambda x: x + draw.normal(0, 0.1, x.shape).astype(np.float32), drawn)


def build(settings=SETTINGS, sharing="ade"):
    """An objective and its parameters."""
    return VaeObjective(model(sharing), settings), params_of(sharing, settings.decoder)
