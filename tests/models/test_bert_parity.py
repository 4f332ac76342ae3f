"""The encoder against PyTorch transformers, layer by layer, forwards and backwards."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import padded, texts

from endx_jax.batch import Tokens
from endx_jax.models import BertConfig
from endx_jax.models.bert import ACTIVATIONS
from endx_jax.models.layout import Padded
from endx_jax.pretrained.architectures import BERT
from endx_jax.pretrained.weights import to_ours, to_theirs

torch = pytest.importorskip("torch", reason="the reference needs PyTorch: pip install endx_jax[reference]")
transformers = pytest.importorskip("transformers")

LENGTH = 11
LENGTHS = (11, 7, 1, 4)  # no padding, some, and a text of one token
VOCABULARY = 60
TOLERANCE = 1e-5  # of the largest magnitude

SHAPES = {
    "two layers": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64},
    "deep, narrow MLP, gelu_new": {
        "hidden_size": 48,
        "num_hidden_layers": 5,
        "num_attention_heads": 4,
        "intermediate_size": 20,
        "hidden_act": "gelu_new",
    },
    "one layer, one type, relu, large epsilon": {
        "hidden_size": 40,
        "num_hidden_layers": 1,
        "num_attention_heads": 5,
        "intermediate_size": 96,
        "hidden_act": "relu",
        "type_vocab_size": 1,
        "layer_norm_eps": 1e-2,
    },
}


@dataclasses.dataclass
class Pair:
    """The same random BERT twice: theirs, and ours with its parameters."""

    theirs: torch.nn.Module
    config: BertConfig
    params: dict
    tokens: Tokens

    def their_states(self) -> tuple:
        """Their embeddings and every layer's output, [B, L, D] each."""
        ids = torch.tensor(np.asarray(self.tokens.ids), dtype=torch.long)
        mask = torch.tensor(np.asarray(self.tokens.mask), dtype=torch.long)
        return self.theirs(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states

    def ours(self, params: dict, **keywords):
        """Our encodings, and with `capture_intermediates=True` what every module handed out."""
        embedded = BERT.embedder(self.config, jnp.float32).apply({"params": params["token_embedder"]}, self.tokens.ids)
        encoder = BERT.encoder(self.config, jnp.float32)
        return encoder.apply({"params": params["encoder"]}, embedded, Padded(self.tokens.mask), **keywords)


@functools.cache
def pair(shape: str) -> Pair:
    config = transformers.BertConfig(
        vocab_size=VOCABULARY, max_position_embeddings=16, attn_implementation="eager", **SHAPES[shape]
    )
    torch.manual_seed(0)
    theirs = transformers.BertModel(config, add_pooling_layer=False).eval()
    with torch.no_grad():  # biases and norms start at 0 and 1, where a mistake in them would not show
        for parameter in theirs.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    ours = BertConfig.from_hugging_face(config.to_dict())
    tensors = {name: parameter.detach().numpy() for name, parameter in theirs.named_parameters()}
    params = to_ours(tensors, BERT.rules, ours.layers, prefixes=BERT.prefixes, where="torch")
    return Pair(theirs, ours, params, padded(texts(LENGTHS, vocab_size=VOCABULARY), LENGTH))


def assert_close_to_scale(ours, theirs, tolerance=TOLERANCE):
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance * np.abs(theirs).max())


@pytest.mark.parametrize("shape", SHAPES)
def test_every_layer_gives_their_hidden_states(shape):
    both = pair(shape)
    encodings, state = jax.jit(functools.partial(both.ours, capture_intermediates=True))(both.params)
    calls = state["intermediates"]
    ours = [calls["norm"]["__call__"][0]]
    ours += [calls[f"layers_{i}"]["__call__"][0] for i in range(both.config.layers)]
    theirs = [state.detach().numpy() for state in both.their_states()]
    for mine, other in zip(ours, theirs, strict=True):
        assert_close_to_scale(mine, other)
    np.testing.assert_array_equal(encodings, ours[-1])


def test_parameter_gradients_are_theirs():
    both = pair("two layers")
    cotangent = np.random.default_rng(1).normal(size=(*both.tokens.ids.shape, both.config.width)).astype(np.float32)
    cotangent *= np.asarray(both.tokens.mask)[:, :, None]  # theirs gives the pad row no gradient, used or not
    (both.their_states()[-1] * torch.tensor(cotangent)).sum().backward()
    theirs = {name: parameter.grad.numpy() for name, parameter in both.theirs.named_parameters()}

    gradients = jax.jit(jax.grad(lambda params: jnp.sum(both.ours(params) * cotangent)))(both.params)
    ours = to_theirs(gradients, BERT.rules, both.config.layers)
    assert set(ours) == set(theirs)
    largest = max(np.abs(gradient).max() for gradient in theirs.values())
    chex.assert_trees_all_close(ours, theirs, rtol=0, atol=TOLERANCE * largest)


def test_parity_notices_the_other_gelu():
    both = pair("two layers")
    other = dataclasses.replace(both, config=dataclasses.replace(both.config, activation="gelu_new"))
    with pytest.raises(AssertionError):
        assert_close_to_scale(jax.jit(other.ours)(both.params), both.their_states()[-1].detach().numpy())


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_theirs(name):
    x = np.linspace(-6, 6, 101, dtype=np.float32)
    theirs = transformers.activations.ACT2FN[name](torch.tensor(x)).numpy()
    np.testing.assert_allclose(ACTIVATIONS[name](jnp.asarray(x)), theirs, rtol=0, atol=1e-6)


def test_the_way_back_loads_into_their_model():
    both = pair("two layers")
    tensors = to_theirs(both.params, BERT.rules, both.config.layers)
    state = {name: torch.tensor(tensor) for name, tensor in tensors.items()}
    fresh = transformers.BertModel(both.theirs.config, add_pooling_layer=False)
    fresh.load_state_dict(state, strict=True)
    for name, parameter in both.theirs.named_parameters():
        assert torch.equal(fresh.get_parameter(name), parameter)
