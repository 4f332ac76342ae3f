"""Folders of the export format `hugging-face`, which earlier versions wrote, are still read."""

import json

import numpy as np
import pytest
from helpers import one_line_error
from tiny_bert import write_tiny_bert
from tiny_models import embeddings, make_model

import endx_jax
from endx_jax.export.run import export
from endx_jax.inference.about import read_about


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A model with prompts and a projection, and its folder: tensors and configs are those of other exports."""
    prompts = {"question_prompt": "what is ", "answer_prompt": "a mat: "}
    folder = tmp_path_factory.mktemp("exports")
    bert = write_tiny_bert(folder / "bert", num_hidden_layers=1)
    model = make_model(bert, answer_length=32, projection=8, sharing="ade", pooling="first", **prompts)
    export(model, "sentence-transformers", folder / "export")
    places = {"question": "query", "answer": "document"}
    sides = {
        side: {
            "folder": f"{place}_0_Transformer",
            "prompt": prompts[f"{side}_prompt"],
            "length": {"question": 24, "answer": 32}[side],
            "projection": f"{place}_2_Dense",
            "program": "",
            "sha256": "",
        }
        for side, place in places.items()
    }
    about = {"format": "hugging-face", "name": "tiny", "width": 8, "normalize": True, "cosine": True, "sides": sides}
    about |= {"pooling": "first", "identity": "", "towers": None, "method": None, "hybrid": None, "version": 1}
    (folder / "export" / "endx.json").write_text(json.dumps(about))
    (folder / "export" / "modules.json").unlink()
    return model, folder / "export"


def test_an_older_export_is_loaded(exported):
    model, folder = exported
    loaded = endx_jax.load(folder)
    found, expected = embeddings(loaded), embeddings(model)
    for side in found:
        np.testing.assert_allclose(found[side], expected[side], atol=1e-6)
    assert (loaded.prompts, loaded.cosine, loaded.identity) == (model.prompts, model.cosine, model.identity)


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("folder", "../../x", "answer: 'folder' is '../../x', which is not in the folder of the file"),
        ("projection", "/x", "answer: 'projection' is '/x', which is not in the folder of the file"),
        ("length", -1, "answer: 'length' is -1; it must be from 1 to"),
        ("prompt", None, "answer.prompt is None, a NoneType; it must be str"),
        ("colour", "red", "unknown setting .*answer.colour"),
    ],
)
def test_damaged_sides_are_refused(exported, tmp_path, key, value, reason):
    about = json.loads((exported[1] / "endx.json").read_text())
    about["sides"]["answer"][key] = value
    (tmp_path / "endx.json").write_text(json.dumps(about))
    with one_line_error(reason):
        read_about(tmp_path)
