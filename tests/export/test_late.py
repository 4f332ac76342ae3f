import json

import numpy as np
import pytest
from helpers import one_line_error
from tiny_models import TEXTS, make_model

import endx_jax
from endx_jax.export import verify
from endx_jax.export.run import export

EXPAND = {"skip": ("cat", "x"), "expand": 12}


def late(folder, question_length=24, tokens=EXPAND):
    settings = {"pooling": "tokens", "projection": 4, "tokens": tokens, "sharing": "sde"}
    return make_model(folder, question_length=question_length, **settings)


@pytest.mark.parametrize(("length", "tokens"), [(24, EXPAND), (12, EXPAND), (24, {})])
def test_endx_jax_reads_an_export_back(one_layer_bert, length, tokens, tmp_path):
    model = late(one_layer_bert, length, tokens)
    export(model, "sentence-transformers", tmp_path / "out")
    read = endx_jax.load(tmp_path / "out")
    for side in ("encode_query", "encode_document"):
        for theirs, ours in zip(getattr(read, side)(TEXTS), getattr(model, side)(TEXTS), strict=True):
            np.testing.assert_allclose(theirs, ours, atol=1e-5)
    listed = json.loads((tmp_path / "out" / "modules.json").read_text())
    assert [each["path"] for each in listed] == ["", "1_Dense", "2_MultiVectorMask", "3_Normalize"]
    assert "MultiVectorEncoder(" in (tmp_path / "out" / "README.md").read_text()


def test_towers_that_differ_and_other_formats_are_refused(one_layer_bert, tmp_path):
    with one_line_error("needs one tower for late interaction: train with model.sharing=sde"):
        export(make_model(one_layer_bert, pooling="tokens", sharing="ade"), "sentence-transformers", tmp_path / "out")
    with one_line_error("has an embedding for each token: use --format=sentence-transformers"):
        export(late(one_layer_bert), "stablehlo", tmp_path / "out")
    with one_line_error("does not cut questions to 8 tokens and fill them up to 12: train with data.question_leng"):
        export(late(one_layer_bert, 8), "sentence-transformers", tmp_path / "out")
    with one_line_error("--truncate-dim needs a model with one vector for each text"):
        export(late(one_layer_bert), "sentence-transformers", tmp_path / "out", truncate_dim=2)


@pytest.mark.slow
@pytest.mark.reference
def test_verification_compares_tokens_and_scores(one_layer_bert, tmp_path, monkeypatch):
    monkeypatch.setattr(verify, "sample_texts", lambda workdir: list(verify.HARD_TEXTS))
    report = export(late(one_layer_bert), "sentence-transformers", tmp_path / "out", tolerance=1e-5)
    assert report.passed
    assert [*report.largest_difference] == ["question", "answer", "scores"]


def test_a_projection_with_a_bias_is_refused_since_it_would_not_be_read_back(one_layer_bert, tmp_path):
    model = late(one_layer_bert)
    model.params["shared"]["projection"]["bias"] = np.zeros(4, np.float32)
    with one_line_error("projects tokens with a bias or an activation, which endx_jax.load refuses: train it from an"):
        export(model, "sentence-transformers", tmp_path / "out")
