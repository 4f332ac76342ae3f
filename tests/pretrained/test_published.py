"""The published shapes: their well-known parameter counts, and the same description as a folder's."""

import dataclasses
import math

import pytest
from tiny_bert import write_tiny_bert

from endx_jax import pretrained
from endx_jax.pretrained.checkpoint import shapes_of
from endx_jax.pretrained.published import is_known, outline


def parameters(name: str) -> int:
    """Of the token table and the encoder: counted for one layer and for two, as all layers but the first are alike."""
    source = outline(name)
    one, two = (
        sum(math.prod(shape) for shape in shapes_of(config).values())
        for config in (dataclasses.replace(source.config, layers=n) for n in (1, 2))
    )
    return one + (source.config.layers - 1) * (two - one)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("google/t5-v1_1-small", 35_332_800),
        ("google/t5-v1_1-base", 109_628_544),
        ("google/t5-v1_1-large", 341_231_104),
        ("google/t5-v1_1-xxl", 4_762_310_656),
        # Without the pooler on the first token, which our towers leave out: 110 and 335 million with it.
        ("google-bert/bert-base-uncased", 108_891_648),
        ("google-bert/bert-large-uncased", 334_092_288),
        ("sentence-transformers/all-MiniLM-L6-v2", 22_565_376),
        ("Alibaba-NLP/gte-modernbert-base", 149_014_272),
        ("Qwen/Qwen3-Embedding-0.6B", 595_776_512),
        # Without its projections, 2 x 768 x 3072: 308 million with them.
        ("google/embeddinggemma-300m", 302_863_104),
    ],
)
def test_published_shapes_have_the_parameters_that_they_are_known_for(name, expected):
    assert parameters(name) == expected


def test_short_names_mean_the_same_and_a_folder_comes_first(tmp_path, monkeypatch):
    assert outline("bert-large-uncased").config == outline("google-bert/bert-large-uncased").config
    write_tiny_bert(tmp_path / "google" / "t5-v1_1-small")
    monkeypatch.chdir(tmp_path)
    assert (is_known("google/t5-v1_1-base"), is_known("google/t5-v1_1-small")) == (True, False)
    assert outline("google/t5-v1_1-small").config.width == 32


def test_the_known_shapes_are_those_of_the_real_folders(minilm, test_data):
    real, known = pretrained.load_encoder(minilm), outline(minilm)
    assert known.config == real.config
    assert dataclasses.replace(known.head, encoder=real.head.encoder) == real.head
    real = pretrained.load_encoder(str(test_data / "weights" / "t5_v1_1_small_encoder"))
    assert outline("google/t5-v1_1-small").config == real.config
