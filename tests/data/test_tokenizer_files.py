"""Tokenizers that are loaded straight from their files give transformers' ids; where they might not, it loads them."""

import json
from concurrent import futures

import pytest
from tiny_bert import write_tiny_bert

from endx_jax.data import tokenizer_files
from endx_jax.data.tokenizer_files import load_tokenizer
from endx_jax.pretrained import locate

TEXTS = [
    "The cat's  sat on [SEP] the MAT.",
    "",
    "naïve café, 北京 ☃",
    " where\tis the dog? ",
    "x" * 200,
    "</s> <pad> a",
]


@pytest.fixture
def folder(tmp_path):
    return write_tiny_bert(tmp_path / "bert")


def asked_transformers(folder, monkeypatch):
    asked = []
    load = tokenizer_files._by_transformers
    monkeypatch.setattr(tokenizer_files, "_by_transformers", lambda folder: asked.append(folder) or load(folder))
    load_tokenizer(folder)
    return bool(asked)


def agrees_with_transformers(folder):
    from transformers import AutoTokenizer

    theirs, ours = AutoTokenizer.from_pretrained(str(folder), local_files_only=True), load_tokenizer(folder)
    for length in (5, 32):
        expected = theirs(TEXTS, truncation=True, max_length=length)["input_ids"]
        assert list(ours.encode(TEXTS, length)) == expected
    assert (ours.pad_id, ours.size) == (theirs.pad_token_id, len(theirs))


def change(file, **values):
    content = json.loads(file.read_text())
    file.write_text(json.dumps({k: v for k, v in (content | values).items() if v is not None}))


def test_a_folder_that_says_all_needs_no_transformers(folder, monkeypatch):
    assert not asked_transformers(folder, monkeypatch)
    agrees_with_transformers(folder)


def test_threads_may_share_a_tokenizer(folder):
    loaded = load_tokenizer(folder)
    lengths, texts = [3, 7, 16] * 20, TEXTS * 50
    expected = {length: list(loaded.encode(texts, length)) for length in set(lengths)}
    with futures.ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda length: list(loaded.encode(texts, length)), lengths)
        assert all(ids == expected[length] for length, ids in zip(lengths, found, strict=True))


def test_texts_are_cut_at_the_side_that_the_config_says(folder, monkeypatch):
    change(folder / "tokenizer_config.json", truncation_side="left")
    assert not asked_transformers(folder, monkeypatch)
    agrees_with_transformers(folder)
    change(folder / "tokenizer_config.json", tokenizer_class=None)
    agrees_with_transformers(folder)


def test_minilm_needs_no_transformers_and_agrees(minilm, monkeypatch):
    assert not asked_transformers(locate(minilm), monkeypatch)
    agrees_with_transformers(locate(minilm))


def test_t5_agrees(test_data):
    agrees_with_transformers(test_data / "weights" / "t5_v1_1_small_encoder")


@pytest.mark.parametrize(
    "values",
    [
        {"tokenizer_class": None},
        {"tokenizer_class": "BertTokenizer", "do_lower_case": False},
        {"tokenizer_class": "BertTokenizer", "strip_accents": False},
        {"tokenizer_class": "BertTokenizer", "mask_token": None},
        {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "mat"},
        {"split_special_tokens": True},
    ],
    ids=str,
)
def test_what_is_open_or_contradicted_is_for_transformers(folder, monkeypatch, values):
    change(folder / "tokenizer_config.json", **values)
    assert asked_transformers(folder, monkeypatch)
    agrees_with_transformers(folder)


def test_special_tokens_that_only_the_config_knows_are_for_transformers(folder, monkeypatch):
    change(folder / "tokenizer.json", added_tokens=[])
    assert asked_transformers(folder, monkeypatch)
    agrees_with_transformers(folder)


def test_a_saved_tokenizer_says_all(folder, tmp_path, monkeypatch):
    change(folder / "tokenizer_config.json", tokenizer_class="BertTokenizer", do_lower_case=False)
    for n, source in enumerate((folder, tmp_path / "0")):
        loaded = load_tokenizer(source)
        list(loaded.encode(TEXTS, 5))  # leaves no length behind
        loaded.save(tmp_path / str(n))
        again = load_tokenizer(tmp_path / str(n))
        assert list(again.encode(TEXTS, 32)) == list(loaded.encode(TEXTS, 32))
        assert (again.pad_id, again.size, again.state()) == (loaded.pad_id, loaded.size, loaded.state())
    assert not asked_transformers(tmp_path / "1", monkeypatch)
