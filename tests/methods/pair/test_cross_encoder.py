"""Cross-encoders of sentence-transformers as scorers of pairs."""

import json
import sys

import numpy as np
import pytest
from helpers import one_line_error
from safetensors.numpy import load_file, save_file
from tiny_bert import write_tiny_bert

from endx_jax.data.records import RetrievalSet
from endx_jax.experiment.model import foreign_pairs, load_pairs, load_teacher
from endx_jax.methods.pair.cross_encoder import SUPPORTED
from endx_jax.pretrained import locate

QUESTIONS, ANSWERS = ["where is the cat 3", "who"], ["the mat of 3", "a dog sat on the mat", "x"]
PAIRS = np.array([[0, 0], [0, 1], [1, 2], [1, 1]])
# The tiny tokenizer as BERT's own: pairs are joined, and their second text is of the second segment.
TEMPLATE = [("[CLS]", 0), ("A", 0), ("[SEP]", 0), ("B", 1), ("[SEP]", 1)]


def write_classifier(folder, outputs: int = 1):
    """A tiny BERT with a pooler and a classifier, as transformers saves it."""
    write_tiny_bert(folder)
    config = json.loads((folder / "config.json").read_text())
    labels = {str(n): f"LABEL_{n}" for n in range(outputs)}
    config |= {"architectures": [SUPPORTED], "id2label": labels, "label2id": {v: int(k) for k, v in labels.items()}}
    (folder / "config.json").write_text(json.dumps(config))
    draw, width = np.random.default_rng(0), config["hidden_size"]
    tensors = {f"bert.{name}": tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    head = {"bert.pooler.dense": (width, width), "classifier": (outputs, width)}
    for name, shape in head.items():
        tensors[f"{name}.weight"] = draw.normal(0, 0.5, shape).astype(np.float32)
        tensors[f"{name}.bias"] = draw.normal(size=shape[:1]).astype(np.float32)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["post_processor"]["pair"] = [
        {"Sequence" if len(name) == 1 else "SpecialToken": {"id": name, "type_id": segment}}
        for name, segment in TEMPLATE
    ]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    own = json.loads((folder / "tokenizer_config.json").read_text())
    own["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    (folder / "tokenizer_config.json").write_text(json.dumps(own))
    return folder


@pytest.mark.slow
def test_scores_are_those_of_sentence_transformers(tmp_path):
    torch = pytest.importorskip("torch", reason="the reference needs PyTorch: pip install endx_jax[reference]")
    library = pytest.importorskip("sentence_transformers", reason="pip install endx_jax[reference]")
    folder = write_classifier(tmp_path / "classifier")
    reference = library.CrossEncoder(str(folder))
    expected = reference.predict([(QUESTIONS[q], ANSWERS[a]) for q, a in PAIRS], activation_fn=torch.nn.Identity())
    assert np.ptp(expected) > 0.1
    np.testing.assert_allclose(load_pairs(folder)(QUESTIONS, ANSWERS)(PAIRS), expected, atol=1e-5)
    reference.save_pretrained(str(tmp_path / "saved"))
    np.testing.assert_allclose(load_pairs(tmp_path / "saved")(QUESTIONS, ANSWERS)(PAIRS), expected, atol=1e-5)


def test_a_name_on_the_hub_is_a_cross_encoder_s_too(tmp_path, monkeypatch):
    """Read as an embedding model, it would give scores without a meaning."""
    folder = write_classifier(tmp_path / "classifier")
    monkeypatch.setattr(sys.modules[locate.__module__], "download", lambda name, patterns: folder)
    records = RetrievalSet.from_pairs(zip(QUESTIONS, ANSWERS, strict=False))
    scored = load_teacher("cross-encoder/of-the-hub")(records.questions, records.candidates)(PAIRS[:2])
    np.testing.assert_array_equal(scored, load_pairs(folder)(records.questions, records.candidates)(PAIRS[:2]))


def test_other_folders_are_refused(tmp_path, tiny_bert):
    assert foreign_pairs(tiny_bert) is foreign_pairs(tmp_path / "missing") is None
    folder = write_classifier(tmp_path / "three", outputs=3)
    with one_line_error(r"classifier.weight has shape \(3, 32\); a classifier with one output has \(1, 32\)"):
        load_pairs(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["RobertaForSequenceClassification"]}))
    with one_line_error("of the classifiers only BertForSequenceClassification can score pairs"):
        load_pairs(folder)
    for kind in ("t5", "static", "modernbert", ["bert"], None):
        (folder / "config.json").write_text(json.dumps(config | {"model_type": kind}))
        with one_line_error("holds a 'BertForSequenceClassification' of model_type .*; of the classifiers only"):
            load_pairs(folder)
