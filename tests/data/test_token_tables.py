"""Tokens that are kept: the same as made anew, under a key that changes with all they depend on, and never trusted."""

import shutil
from concurrent import futures

import numpy as np
import pytest
from tiny_bert import write_tiny_bert

from endx_jax.data.token_tables import TokenCache, content_key
from endx_jax.data.tokenization import TextProcessor, Tokenizer

TEXTS = ["the cat sat on the mat", "", "where is the dog", "naïve ☃"]


@pytest.fixture
def prepare(tiny_bert, tmp_path):
    return TextProcessor(Tokenizer(tiny_bert), 8, "", TokenCache(tmp_path / "cache"))


def entry(tmp_path):
    (file,) = (tmp_path / "cache").iterdir()
    return file


def same(found, expected):
    assert found.ids.dtype == expected.ids.dtype == np.int32
    assert found.offsets.dtype == expected.offsets.dtype == np.int64
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_array_equal(found.offsets, expected.offsets)
    assert found.pad_id == expected.pad_id


def refuse_to_tokenize(monkeypatch):
    monkeypatch.setattr(Tokenizer, "__call__", lambda *_: pytest.fail("the texts were tokenised again"))


@pytest.mark.parametrize("texts", [TEXTS, [], [""]])
def test_cached_tokens_equal_computed_ones(prepare, tiny_bert, monkeypatch, texts):
    made = prepare(texts)
    same(made, TextProcessor(Tokenizer(tiny_bert), 8)(texts))
    refuse_to_tokenize(monkeypatch)
    kept = prepare(texts)
    same(kept, made)
    rows = np.arange(len(texts))
    np.testing.assert_array_equal(kept.pad(rows, 8).ids, made.pad(rows, 8).ids)


def test_kept_tokens_are_mapped_and_not_read(prepare):
    prepare(TEXTS)
    kept = prepare(TEXTS).ids
    while not isinstance(kept, np.memmap):
        kept = kept.base
    assert kept.mode == "r"


def test_the_key_counts_boundaries_order_and_everything_about(tiny_bert, tmp_path):
    other = Tokenizer(write_tiny_bert(tmp_path / "other"))
    identity = Tokenizer(tiny_bert).identity
    assert other.identity == identity  # another folder, the same tokenizer
    lowered = tmp_path / "other" / "tokenizer.json"
    lowered.write_text(lowered.read_text().replace('"lowercase": true', '"lowercase": false'))
    changed = Tokenizer(tmp_path / "other").identity
    keys = [
        content_key(["ab", "c"], identity, "", 8),
        content_key(["a", "bc"], identity, "", 8),
        content_key(["abc"], identity, "", 8),
        content_key(["c", "ab"], identity, "", 8),
        content_key(["ab", "c", ""], identity, "", 8),
        content_key(["ab", "c"], identity, "", 9),
        content_key(["ab", "c"], identity, "a", 8),
        content_key(["ab", "c"], changed, "", 8),
    ]
    assert len(set(keys)) == len(keys)
    assert content_key(("ab", "c"), identity, "", 8) == keys[0]


def test_length_and_prompt_make_other_entries(prepare, tiny_bert, tmp_path):
    cache, tokenizer = TokenCache(tmp_path / "cache"), Tokenizer(tiny_bert)
    for processor in (prepare, TextProcessor(tokenizer, 6, "", cache), TextProcessor(tokenizer, 8, "the ", cache)):
        same(processor(TEXTS), processor._tokenize(TEXTS))
        same(processor(TEXTS), processor._tokenize(TEXTS))
    assert len(list((tmp_path / "cache").iterdir())) == 3


def truncate(file):
    file.write_bytes(file.read_bytes()[:-4])


def flip_a_token(file):
    content = bytearray(file.read_bytes())
    content[-4] ^= 1
    file.write_bytes(content)


def flip_a_length(file):
    content = bytearray(file.read_bytes())
    content[128 + 8] ^= 1  # after the header of .npy, and our two numbers
    file.write_bytes(content)


def move_a_boundary(file):
    array = np.load(file)
    array[2:4] += [1, -1]
    np.save(file, array)


def lie_about_the_count(file):
    array = np.load(file)
    array[0] = len(array)
    np.save(file, array)


def pickle(file):
    np.save(file, np.array([{"a": 1}], object), allow_pickle=True)


DAMAGES = {
    "truncated": truncate,
    "a token flipped": flip_a_token,
    "a length flipped": flip_a_length,
    "a boundary moved": move_a_boundary,
    "another count": lie_about_the_count,
    "empty": lambda file: file.write_bytes(b""),
    "only a beginning": lambda file: file.write_bytes(file.read_bytes()[:40]),
    "no array": lambda file: file.write_text("tokens"),
    "another type": lambda file: np.save(file, np.load(file).astype(np.int64)),
    "another shape": lambda file: np.save(file, np.load(file)[None]),
    "no header": lambda file: np.save(file, np.load(file)[:1]),
    "a pickle": pickle,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_entry_is_made_again(prepare, tmp_path, monkeypatch, damage):
    made = prepare(TEXTS)
    whole = entry(tmp_path).read_bytes()
    damage(entry(tmp_path))
    same(prepare(TEXTS), made)
    assert entry(tmp_path).read_bytes() == whole
    refuse_to_tokenize(monkeypatch)
    same(prepare(TEXTS), made)


def test_an_entry_under_another_ones_name_is_made_again(prepare, tmp_path):
    prepare(TEXTS)
    first = entry(tmp_path)
    expected = prepare(TEXTS[:3])
    (second,) = (file for file in first.parent.iterdir() if file != first)
    shutil.copy(first, second)
    same(prepare(TEXTS[:3]), expected)


def test_several_may_write_one_entry_while_others_read_it(tmp_path):
    ids, lengths, key = np.arange(60_000, dtype=np.int32), np.full(600, 100), content_key(TEXTS)

    def write():
        for _ in range(20):
            TokenCache(tmp_path).write(key, ids, lengths)

    TokenCache(tmp_path).write(key, ids, lengths)
    with futures.ThreadPoolExecutor(4) as pool:
        writers = [pool.submit(write) for _ in range(4)]
        while not all(writer.done() for writer in writers):
            kept_ids, kept_lengths = TokenCache(tmp_path).read(key)
            np.testing.assert_array_equal(kept_ids, ids)
            np.testing.assert_array_equal(kept_lengths, lengths)
    for writer in writers:
        writer.result()
    assert [file.name for file in tmp_path.iterdir()] == [f"tokens-{key}.npy"]


def test_a_folder_that_cannot_be_written_to_is_said_once(tiny_bert, tmp_path):
    (tmp_path / "cache").write_text("a file where the folder should be")
    prepare = TextProcessor(Tokenizer(tiny_bert), 8, "", TokenCache(tmp_path / "cache"))
    with pytest.warns(UserWarning, match="nothing is cached .* set data.cache to a writable folder") as warned:
        tables = [prepare(TEXTS), prepare(TEXTS), prepare(TEXTS[:2])]
    assert len(warned) == 1
    same(tables[1], prepare._tokenize(TEXTS))
