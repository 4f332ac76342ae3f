"""The published shapes: their well-known parameter counts, and the same description as a folder's."""

import dataclasses
import math

import pytest
from tiny_bert import write_tiny_bert

from endx_jax import pretrained
from endx_jax.pretrained.checkpoint import shapes_of
from endx_jax.pretrained.published import CONFIGS, is_known, outline, outline_tokens


def parameters(name: str) -> int:
    """Of the token table and the encoder: counted for one layer and for two, as all layers but the first are alike."""
    source = outline(name)
    one, two = (
        sum(math.prod(shape) for shape in shapes_of(source.architecture, config).values())
        for config in (dataclasses.replace(source.config, layers=n) for n in (1, 2))
    )
    return one + (source.config.layers - 1) * (two - one)


def t5(width, mlp, layers, heads):
    inner = 64 * heads
    a_layer = 4 * width * inner + 3 * width * mlp + 2 * width
    return 32128 * width + 32 * heads + layers * a_layer + width


def bert(width, layers):
    a_layer = 4 * (width * width + width) + 2 * 4 * width * width + 4 * width + width + 4 * width
    return (30522 + 512 + 2 + 2) * width + layers * a_layer


def modernbert(width, mlp, layers):
    a_layer = 4 * width * width + 3 * width * mlp + 2 * width
    return (50368 + 1 + 1 - 1) * width + layers * a_layer  # norms: of embeddings, the last, none before layer 0


def decoder(vocab, width, mlp, layers, heads, groups, head, norms):
    a_layer = 2 * width * head * (heads + groups) + 3 * width * mlp + norms * width + 2 * head
    return vocab * width + layers * a_layer + width


@pytest.mark.parametrize(
    ("name", "expected", "millions"),
    [
        ("google/t5-v1_1-small", t5(512, 1024, 8, 6), 35),
        ("google/t5-v1_1-base", t5(768, 2048, 12, 12), 110),
        ("google/t5-v1_1-large", t5(1024, 2816, 24, 16), 341),
        ("google/t5-v1_1-xxl", t5(4096, 10240, 24, 64), 4762),
        # Without the pooler on the first token, which our towers leave out: 110 and 335 with it.
        ("google-bert/bert-base-uncased", bert(768, 12), 109),
        ("google-bert/bert-large-uncased", bert(1024, 24), 334),
        ("sentence-transformers/all-MiniLM-L6-v2", bert(384, 6), 23),
        ("Alibaba-NLP/gte-modernbert-base", modernbert(768, 1152, 22), 149),
        ("Qwen/Qwen3-Embedding-0.6B", decoder(151669, 1024, 3072, 28, 16, 8, 128, 2), 596),
        # Without its projections, 2 x 768 x 3072: 308 with them.
        ("google/embeddinggemma-300m", decoder(262144, 768, 1152, 24, 3, 1, 256, 4), 303),
    ],
)
def test_published_shapes_have_the_parameters_that_they_are_known_for(name, expected, millions):
    found = parameters(name)
    assert found == expected
    assert round(found / 1e6) == millions


def test_every_shape_is_counted_above_and_short_names_mean_the_same():
    assert len(CONFIGS) == 13
    assert outline("bert-large-uncased").config == outline("google-bert/bert-large-uncased").config
    assert outline_tokens("bert-base-uncased").config.width == 768


def test_the_known_shapes_are_those_of_the_real_folders(minilm, test_data):
    real, known = pretrained.load_encoder(minilm), outline(minilm)
    assert known.config == real.config
    assert dataclasses.replace(known.head, encoder=real.head.encoder) == real.head
    real = pretrained.load_encoder(str(test_data / "weights" / "t5_v1_1_small_encoder"))
    assert outline("google/t5-v1_1-small").config == real.config


def test_other_names_are_loaded_and_a_folder_comes_first(tmp_path, monkeypatch):
    folder = write_tiny_bert(tmp_path / "google" / "t5-v1_1-small")
    assert outline(str(folder)).folder == folder
    monkeypatch.chdir(tmp_path)
    assert is_known("google/t5-v1_1-base")
    assert not is_known("google/t5-v1_1-small")
    assert outline("google/t5-v1_1-small").config.width == 32
