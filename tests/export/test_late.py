import json

import numpy as np
import pytest
from tiny_models import TEXTS, make_model

import endx_jax
from endx_jax.export import verify
from endx_jax.export.run import export

EXPAND = {"skip": ("cat", "x"), "expand": 12}


def late(folder, question_length=24, tokens=EXPAND):
    settings = {"pooling": "tokens", "projection": 4, "tokens": tokens, "sharing": "sde"}
    return make_model(folder, question_length=question_length, **settings)


@pytest.mark.parametrize(("length", "tokens"), [(24, EXPAND), (12, EXPAND), (24, {})])
def test_endx_jax_reads_an_export_back(tiny_bert, length, tokens, tmp_path):
    model = late(tiny_bert, length, tokens)
    export(model, "sentence-transformers", tmp_path / "out")
    read = endx_jax.load(tmp_path / "out")
    assert read.identity == model.identity
    if length == 12:  # texts are cut, and questions expanded
        for side in ("encode_query", "encode_document"):
            for theirs, ours in zip(getattr(read, side)(TEXTS), getattr(model, side)(TEXTS), strict=True):
                np.testing.assert_allclose(theirs, ours, atol=1e-5)
    listed = json.loads((tmp_path / "out" / "modules.json").read_text())
    assert [each["path"] for each in listed] == ["", "1_Dense", "2_MultiVectorMask", "3_Normalize"]
    assert "MultiVectorEncoder(" in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.slow
@pytest.mark.reference
def test_verification_compares_tokens_and_scores(tiny_bert, tmp_path, monkeypatch):
    monkeypatch.setattr(verify, "sample_texts", lambda workdir: list(verify.HARD_TEXTS))
    report = export(late(tiny_bert), "sentence-transformers", tmp_path / "out", tolerance=1e-5)
    assert report.passed
    assert [*report.largest_difference] == ["question", "answer", "scores"]
