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


def ids_of(loaded, texts, length) -> list[list[int]]:
    return list(loaded.encode(texts, length)[0])


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
        assert ids_of(ours, TEXTS, length) == expected
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
    expected = {length: ids_of(loaded, texts, length) for length in set(lengths)}
    with futures.ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda length: ids_of(loaded, texts, length), lengths)
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
        loaded.encode(TEXTS, 5)  # leaves no length behind
        loaded.save(tmp_path / str(n))
        again = load_tokenizer(tmp_path / str(n))
        assert ids_of(again, TEXTS, 32) == ids_of(loaded, TEXTS, 32)
        assert (again.pad_id, again.size, again.state()) == (loaded.pad_id, loaded.size, loaded.state())
    assert not asked_transformers(tmp_path / "1", monkeypatch)


@pytest.mark.parametrize("side", ["right", "left"])
def test_texts_that_are_cut_are_counted(folder, side):
    change(folder / "tokenizer_config.json", truncation_side=side)
    ids, cut = load_tokenizer(folder).encode(["the cat", "the cat the", "the cat the cat", ""], 5)  # two special tokens
    assert ([len(row) for row in ids], cut) == ([4, 5, 5, 2], 1)


def test_a_tokenizer_that_is_written_in_python_counts_too(folder, monkeypatch):
    """transformers has few left; what it gives is a callable that knows nothing of what it cut."""

    class Slow:
        pad_token_id = 0

        def __len__(self):
            return 9

        def __call__(self, texts, truncation=False, max_length=None):
            rows = [[1] * len(text) for text in texts]
            return {"input_ids": [row[:max_length] for row in rows] if truncation else rows}

    class Transformers:
        class AutoTokenizer:
            from_pretrained = staticmethod(lambda folder, **_: Slow())

    monkeypatch.setattr(tokenizer_files, "_transformers", lambda: Transformers)
    loaded = tokenizer_files._by_transformers(folder)
    assert loaded.encode(["ab", "abc", "abcd"], 3) == ([[1, 1], [1, 1, 1], [1, 1, 1]], 1)


def test_halves_of_surrogate_pairs_are_joined_or_unknown(folder):
    loaded = load_tokenizer(folder)
    whole, joined, half, unknown = ids_of(loaded, ["a 🙂", "a \ud83d\ude42", "a \ud83d", "a \ufffd"], 9)
    assert whole == joined
    assert half == unknown
