"""T5 encoders against PyTorch transformers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from endx_jax.models.layout import Padded
from endx_jax.models.t5 import T5Config, relative_position_buckets
from endx_jax.pretrained.architectures import T5
from endx_jax.pretrained.weights import to_ours

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from transformers import T5Config as TheirConfig  # noqa: E402 (only where PyTorch is)
from transformers import T5EncoderModel  # noqa: E402
from transformers.models.t5.modeling_t5 import T5Attention as TheirAttention  # noqa: E402

SHAPES = (
    {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2, "vocab_size": 50},
    {"d_model": 24, "d_kv": 8, "d_ff": 64, "num_layers": 3, "num_heads": 6, "vocab_size": 40},  # heads wider than D
)


@pytest.fixture(scope="module", params=SHAPES)
def reference(request):
    torch.manual_seed(0)
    config = TheirConfig(**request.param, feed_forward_proj="gated-gelu", relative_attention_max_distance=20)
    model = T5EncoderModel(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # they start with ones in norms and tiny biases
            spread = 0.5 if "relative" in name or "norm" in name else 0.1
            parameter.add_(spread * torch.randn_like(parameter))
    return model


def ours(reference, scan_layers=False, dtype=jnp.float32):
    config = T5Config.from_hugging_face(reference.config.to_dict())
    tensors = {name: tensor.detach().numpy() for name, tensor in reference.state_dict().items()}
    params = to_ours(tensors, T5.rules, config.layers, prefixes=(), where="test")
    embedder = T5.embedder(config, dtype)
    encoder = T5.encoder(config, dtype, scan_layers=scan_layers, remat="full" if scan_layers else "none")

    def encode(ids, mask):
        embedded = embedder.apply({"params": params["token_embedder"]}, ids)
        return encoder.apply({"params": params["encoder"]}, embedded, Padded(mask))

    return encode


def inputs(vocab_size, length=40):
    draw = np.random.default_rng(0)
    mask = np.arange(length)[None] < np.array([[length], [7], [1]])
    return np.where(mask, draw.integers(1, vocab_size, (3, length)), 0), mask


@pytest.mark.parametrize("scan_layers", [False, True])
def test_encodings_are_those_of_pytorch(reference, scan_layers):
    ids, mask = inputs(reference.config.vocab_size)
    with torch.no_grad():
        expected = reference(torch.tensor(ids), attention_mask=torch.tensor(mask)).last_hidden_state.numpy()
    found = np.asarray(jax.jit(ours(reference, scan_layers))(ids, mask))
    assert np.abs(found - expected)[mask].max() < 1e-5 * np.abs(expected[mask]).max()


@pytest.mark.parametrize("length", [1, 9, 300])
@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (32, 20), (8, 16)])
def test_buckets_are_those_of_pytorch(length, buckets, max_distance):
    position = torch.arange(length)
    distance = position[None] - position[:, None]
    expected = TheirAttention._relative_position_bucket(
        distance, bidirectional=True, num_buckets=buckets, max_distance=max_distance
    )
    found = relative_position_buckets(distance.numpy(), buckets, max_distance)
    np.testing.assert_array_equal(found, expected.numpy())


def test_bfloat16_stays_near_and_does_not_overflow(reference):
    ids, mask = inputs(reference.config.vocab_size)
    whole, half = (np.asarray(ours(reference, dtype=d)(ids, mask), np.float32) for d in (jnp.float32, jnp.bfloat16))
    assert np.abs(half - whole)[mask].max() < 0.05 * np.abs(whole[mask]).max()


def test_the_real_weights(test_data):
    folder = test_data / "weights" / "t5_v1_1_small_encoder"
    if not folder.is_dir():
        pytest.skip("ENDX_TEST_DATA has no T5 weights")
    from endx_jax import pretrained

    model = T5EncoderModel.from_pretrained(str(folder), dtype=torch.float32).eval()
    source = pretrained.load(str(folder))
    params, config = source.params(), source.config
    ids, mask = inputs(config.vocab_size, length=24)
    with torch.no_grad():
        expected = model(torch.tensor(ids), attention_mask=torch.tensor(mask)).last_hidden_state.numpy()
    embedded = T5.embedder(config, jnp.float32).apply({"params": params["token_embedder"]}, ids)
    found = np.asarray(T5.encoder(config).apply({"params": params["encoder"]}, embedded, Padded(mask)))
    assert np.abs(found - expected)[mask].max() < 1e-4 * np.abs(expected[mask]).max()
