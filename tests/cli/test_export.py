import json

import numpy as np
import pytest

import endx_jax
from endx_jax.export import verify


def test_a_workdir_is_exported_for_sentence_transformers(bert_workdir, tmp_path, endx):
    output = tmp_path / "out"
    said = endx("export", f"--workdir={bert_workdir}", f"--output={output}").out
    assert f"is in {output}, as sentence-transformers; README.md there says how to use it" in said
    texts = ["where is the cat", "", "🙂"]
    expected = endx_jax.load(bert_workdir).encode_document(texts)
    np.testing.assert_allclose(endx_jax.load(output).encode_document(texts), expected, atol=1e-6)
    assert json.loads((output / "export_report.json").read_text())["passed"] is None


def test_a_pretrained_model_is_exported_and_verified(tiny_bert, tmp_path, endx, monkeypatch):
    pytest.importorskip("flatbuffers", reason="flatbuffers is not installed")
    monkeypatch.setattr(verify, "sample_texts", lambda workdir: ["", "the cat", "a dog " * 99])
    elsewhere, found = verify.encoded_elsewhere, []

    def once(*arguments):  # in a process of its own, which takes seconds
        found.append(found[0] if found else elsewhere(*arguments))
        return found[0]

    monkeypatch.setattr(verify, "encoded_elsewhere", once)
    arguments = [f"--model={tiny_bert}", "--format=stablehlo", f"--output={tmp_path / 'out'}", "--verify"]
    assert "verified: over 3 texts the largest difference is" in endx("export", *arguments).out
    # No two machines round alike to the last bit: nothing passes a tolerance below 0.
    assert "more than --tolerance=-1; see" in endx("export", *arguments, "--tolerance=-1", status=2).err
    assert (tmp_path / "out.failed" / "export_report.json").is_file()
