import json
import sys

import numpy as np
import pytest
from refusals import check_refusal
from safetensors.numpy import load_file, save_file
from tiny_bert import sizes, vocabulary, write_tokenizer

import endx_jax
from endx_jax.data.sets.records import RetrievalSet
from endx_jax.experiment.saved_model import load_pair_scorer
from endx_jax.methods.pair.batches import longest_first
from endx_jax.pretrained import locate
from endx_jax.ranking.mining import SimilaritiesOfTexts

pytestmark = pytest.mark.reference

QUESTIONS, ANSWERS = ["where is the cat 3", "who"], ["the mat of 3", "a dog sat on the mat", "x"]
PAIRS = np.array([[0, 0], [0, 1], [1, 2], [1, 1]])
# Pairs as BERT's tokenizer joins them, the second text of the second segment, and as RoBERTa's does.
OF_BERT = [("[CLS]", 0), ("A", 0), ("[SEP]", 0), ("B", 1), ("[SEP]", 1)]
OF_ROBERTA = [("[CLS]", 0), ("A", 0), ("[SEP]", 0), ("[SEP]", 0), ("B", 0), ("[SEP]", 0)]
WITH_SEGMENTS = ("bert", "electra", "albert", "gte")

SMALL = sizes(24, layers=1, heads=2, mlp_width=40, positions=66, vocab_size=len(vocabulary()), pad_token_id=0)
DISTILBERT = {"vocab_size": len(vocabulary()), "dim": 24, "n_layers": 1, "n_heads": 2, "hidden_dim": 40}
BIASED = {"classifier_pooling": "mean", "classifier_bias": True, "norm_bias": True, "classifier_activation": "silu"}
# By name: model_type and the keys of its config.
FAMILIES = {
    "bert": ("bert", SMALL),
    "xlm-roberta": ("xlm-roberta", SMALL | {"type_vocab_size": 1, "pad_token_id": 1}),
    "modernbert": ("modernbert", SMALL),
    "modernbert, mean": ("modernbert", SMALL | BIASED),
    "electra": ("electra", SMALL | {"embedding_size": 12, "pad_token_id": None}),
    "mpnet": ("mpnet", SMALL | {"pad_token_id": 1}),
    "roberta": ("roberta", SMALL | {"type_vocab_size": 1}),
    "camembert": ("camembert", SMALL | {"type_vocab_size": 1}),
    "distilbert": ("distilbert", DISTILBERT | {"max_position_embeddings": 66, "pad_token_id": 0}),
    "albert": ("albert", SMALL | {"embedding_size": 12}),
    "gte": ("gte", SMALL | {"type_vocab_size": 2}),
}


def write_pair_tokenizer(folder, template):
    """Writes the tiny tokenizer with a template of pairs. It pads with id 0, whatever the family's config says."""
    write_tokenizer(folder)
    file, own = folder / "tokenizer.json", folder / "tokenizer_config.json"
    tokenizer, config = json.loads(file.read_text()), json.loads(own.read_text())
    tokenizer["post_processor"]["pair"] = [
        {"Sequence" if len(name) == 1 else "SpecialToken": {"id": name, "type_id": segment}}
        for name, segment in template
    ]
    file.write_text(json.dumps(tokenizer))
    segments = ["token_type_ids"] if template == OF_BERT else []
    own.write_text(json.dumps(config | {"model_input_names": ["input_ids", *segments, "attention_mask"]}))


def write_classifier(folder, outputs: int = 1, name: str = "bert"):
    """A tiny encoder with a random classifier, as transformers saves it."""
    import torch
    import transformers

    family, keys = FAMILIES[name]
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(family, **keys, num_labels=outputs)
    model = transformers.AutoModelForSequenceClassification.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    write_pair_tokenizer(folder, OF_BERT if family in WITH_SEGMENTS else OF_ROBERTA)
    return folder


def logits(folder) -> np.ndarray:
    """The scores of `PAIRS` by transformers, one pair at a time."""
    import torch
    import transformers

    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        pairs = [tokenizer(QUESTIONS[q], ANSWERS[a], return_tensors="pt") for q, a in PAIRS]
        return np.array([model(**pair).logits.item() for pair in pairs])


@pytest.mark.parametrize("name", FAMILIES)
def test_scores_are_those_of_transformers(name, tmp_path):
    folder = write_classifier(tmp_path, name=name)
    expected = logits(folder)
    assert np.ptp(expected) > 0.01
    found = load_pair_scorer(folder)(QUESTIONS, ANSWERS)(PAIRS)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_the_classifier_of_gte_s_own_code_is_read_by_its_names(tmp_path):
    folder = write_classifier(tmp_path, name="gte")
    expected = logits(folder)
    tensors = load_file(folder / "model.safetensors")
    renamed = {name.replace("gte.", "new.", 1): tensor for name, tensor in tensors.items()}
    save_file(renamed, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "new", "architectures": ["NewForSequenceClassification"]}
    (folder / "config.json").write_text(json.dumps(config))
    found = load_pair_scorer(folder)(QUESTIONS, ANSWERS)(PAIRS)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_a_name_on_the_hub_is_a_cross_encoder_s_too(tmp_path, monkeypatch):
    folder = write_classifier(tmp_path / "classifier")
    monkeypatch.setattr(sys.modules[locate.__module__], "download", lambda *_, **__: folder)
    records = RetrievalSet.from_pairs(zip(QUESTIONS, ANSWERS, strict=False))
    loaded = load_pair_scorer("cross-encoder/of-the-hub"), load_pair_scorer(folder)
    scores = [scores_of(records.questions, records.candidates)(PAIRS[:2]) for scores_of in loaded]
    np.testing.assert_array_equal(*scores)


@pytest.mark.parametrize("name", ["bert", "xlm-roberta"])
def test_prompt_length_and_truncation_are_those_of_sentence_transformers(name, tmp_path):
    long = ["the cat " * 12, "a dog " * 40, "who", "where is the mat " * 5]
    import sentence_transformers as library
    import torch

    folder, pairs = write_classifier(tmp_path / "classifier", name=name), [(q, a) for q in long for a in long]
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"model_max_length": 64}))  # ST fails beyond, for RoBERTa
    rows = np.array([(q, a) for q in range(len(long)) for a in range(len(long))])
    for n, changes in enumerate(({}, {"max_length": 25}, {"prompts": {"x": "on the: "}, "default_prompt_name": "x"})):
        reference = library.CrossEncoder(str(folder), **changes)
        expected = reference.predict(pairs, activation_fn=torch.nn.Identity(), show_progress_bar=False)
        reference.save_pretrained(str(tmp_path / f"saved{n}"))
        for saved in [tmp_path / f"saved{n}"] + [folder] * (not changes):
            np.testing.assert_allclose(load_pair_scorer(saved)(long, long)(rows), expected, atol=2e-5)


@pytest.mark.parametrize("room", range(12))
def test_the_longer_text_of_a_pair_is_cut_first(room):
    def naive(first, second):
        while first + second > room:
            first, second = (first - 1, second) if first > second else (first, second - 1)
        return first, second

    pairs = [(first, second) for first in range(15) for second in range(15)]
    found = longest_first(*np.array(pairs).T, room)
    for (first, second), *cut in zip(pairs, *found, strict=True):
        # Where both are cut, transformers gives a token that is left to the longer one, or to the second.
        expected = naive(first, second)
        assert sum(cut) == sum(expected)
        assert abs(cut[0] - expected[0]) <= (2 * min(first, second) > room)


def test_a_cross_encoder_is_no_embedding_model(tmp_path):
    folder = write_classifier(tmp_path / "classifier")
    check_refusal(lambda: endx_jax.load(folder), "--rerank", "load_pair_scorer")
    (folder / "modules.json").write_text(json.dumps([]))
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"model_type": "CrossEncoder"}))
    check_refusal(lambda: endx_jax.load(folder), "pass it to --rerank")
    check_refusal(lambda: load_pair_scorer(folder), "modules.json", "a cross-encoder may have no modules")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["RobertaModel"]}))
    check_refusal(lambda: load_pair_scorer(folder), "reranker", "not supported", "RobertaForSequenceClassification")
    (folder / "config_sentence_transformers.json").unlink()
    check_refusal(lambda: load_pair_scorer(folder), "is a pretrained model")


def test_other_folders_are_refused(tmp_path, tiny_bert):
    check_refusal(lambda: load_pair_scorer(tiny_bert), "is a pretrained model, not a run")
    check_refusal(lambda: load_pair_scorer(tmp_path / "missing"), "is not a local folder")
    assert isinstance(load_pair_scorer(tiny_bert, embeddings=True), SimilaritiesOfTexts)
    folder = write_classifier(tmp_path / "three", outputs=3)
    check_refusal(lambda: load_pair_scorer(folder), "classifier.weight", "(3, 24)", "(1, 24)")
    config = json.loads((folder / "config.json").read_text())
    for name, family in (("Roberta", "bert"), ("DebertaV2", "deberta")):
        kind = f"{name}ForSequenceClassification"
        (folder / "config.json").write_text(json.dumps(config | {"architectures": [kind], "model_type": family}))
        check_refusal(lambda: load_pair_scorer(folder), f"a '{kind}' of model_type '{family}'", "that can score pairs")
    for kind in ("t5", "static", "modernbert", ["bert"], None):
        (folder / "config.json").write_text(json.dumps(config | {"model_type": kind}))
        check_refusal(lambda: load_pair_scorer(folder), "'BertForSequenceClassification' of", "that can score pairs")


def test_a_tokenizer_that_joins_in_another_way_is_refused(tmp_path):
    folder = write_classifier(tmp_path)
    write_pair_tokenizer(folder, [("A", 0), ("B", 1)])
    check_refusal(lambda: load_pair_scorer(folder), "[5, 5]", "[2, 5, 3]")


def test_a_classifier_without_its_pooler_is_refused(tmp_path):
    folder = write_classifier(tmp_path, name="xlm-roberta")
    tensors = load_file(folder / "model.safetensors")
    del tensors["classifier.dense.bias"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    check_refusal(lambda: load_pair_scorer(folder), "the weights have no tensor 'classifier.dense.bias'")
