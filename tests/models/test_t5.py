import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from helpers import random_params

from endx_jax.encoders.t5 import T5Config
from endx_jax.models.layers import relative_position_buckets
from endx_jax.models.layout import Padded
from endx_jax.models.transformer import TransformerEncoder

TINY = T5Config(vocab_size=20, width=8, layers=2, heads=2, head_width=4, mlp_width=12, max_distance=20)
HUGGING_FACE = {"vocab_size": 20, "d_model": 8, "num_layers": 2, "num_heads": 2, "d_kv": 4, "d_ff": 12}
HUGGING_FACE |= {"feed_forward_proj": "gated-gelu", "relative_attention_max_distance": 20}


def test_biases_of_single_layers_stay_float32_in_a_scan():
    config = dataclasses.replace(TINY, bias_by_layer=True)
    embedded = np.random.default_rng(1).normal(size=(1, 12, 8)).astype(np.float32)
    layout = Padded(jnp.ones((1, 12), bool))
    params = random_params(TransformerEncoder(config), embedded, layout)
    for layer in ("layers_0", "layers_1"):
        params[layer]["relative_position_bias"] = 100 + 3 * params[layer]["relative_position_bias"]
    half = [TransformerEncoder(config, jnp.dtype(jnp.bfloat16), scan_layers=scan) for scan in (False, True)]
    plain, scanned = (jax.jit(encoder.apply)({"params": params}, embedded, layout) for encoder in half)
    np.testing.assert_allclose(np.float32(scanned), np.float32(plain), atol=2**-6)


def test_buckets_by_hand():
    # 8 buckets: 0 and 1 exact, 2 and 3 logarithmic up to distance 16, and the same from 4 on for keys after the query.
    distances = np.array([0, 1, 2, 3, 4, 5, 6, 7, -19])
    found = jax.jit(lambda: relative_position_buckets(distances, buckets=8, max_distance=16))()
    assert found.tolist() == [0, 5, 6, 6, 6, 6, 7, 7, 3]


def test_a_config_is_read():
    assert T5Config.from_hugging_face(HUGGING_FACE) == TINY
