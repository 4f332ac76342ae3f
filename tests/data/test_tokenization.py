import json

import numpy as np
import pytest

from endx_jax.data.tokenization import Tokenizer, TokenTable, padded_length
from endx_jax.errors import EndxError


@pytest.fixture(scope="module")
def tokenizer(tiny_bert):
    return Tokenizer(tiny_bert)


def test_padding_fills_the_right_and_masks_it():
    table = TokenTable(np.array([5, 6, 7, 8], np.int32), np.array([0, 3, 4]), pad_id=9)
    tokens = table.pad(np.array([1, 0, 1]), 4)
    np.testing.assert_array_equal(tokens.ids, [[8, 9, 9, 9], [5, 6, 7, 9], [8, 9, 9, 9]])
    np.testing.assert_array_equal(tokens.mask, tokens.ids != 9)
    assert tokens.ids.dtype == np.int32


def test_rows_of_any_shape_are_padded_also_empty_ones():
    table = TokenTable(np.zeros(0, np.int32), np.zeros(3, np.int64), pad_id=9)
    np.testing.assert_array_equal(table.pad(np.array([[0], [1]]), 2).ids, [[[9, 9]], [[9, 9]]])
    table = TokenTable(np.array([5, 6, 7], np.int32), np.array([0, 1, 1, 3]), pad_id=9)
    np.testing.assert_array_equal(table.pad(np.array([[2, 0], [1, 2]]), 2).ids, [[[6, 7], [5, 9]], [[9, 9], [6, 7]]])


@pytest.mark.parametrize(("longest", "expected"), [(0, 32), (1, 32), (32, 32), (33, 64), (65, 70), (90, 70)])
def test_padded_length_is_the_next_multiple_up_to_the_limit(longest, expected):
    assert padded_length(longest, limit=70, multiple=32) == expected


def test_texts_are_cut_with_their_special_tokens(tokenizer):
    table = tokenizer(["the cat sat on the mat", "the", ""], max_length=5)
    np.testing.assert_array_equal(table.lengths, [5, 3, 2])
    first = table.ids[:5]
    assert first[0] == table.ids[5]  # both begin with [CLS]
    assert first[-1] == table.ids[7]  # and end with [SEP], the cut one too


def test_texts_that_were_cut_are_counted_over_all_chunks(tokenizer, monkeypatch):
    monkeypatch.setattr("endx_jax.data.tokenization.CHUNK", 2)
    long = "the cat sat on the mat"
    assert tokenizer([long, "the", "", long, long], max_length=5).cut == 3
    assert tokenizer([long, "the"], max_length=64).cut == 0


def test_tokenizers_of_one_state_make_the_same_ids(tokenizer, tiny_bert, tmp_path):
    again = Tokenizer(tiny_bert)
    assert tokenizer.same_ids(again)
    assert again.fingerprint in again.identity
    spec = json.loads((tiny_bert / "tokenizer.json").read_text())
    spec["model"]["max_input_chars_per_word"] = 7
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    config = json.loads((tiny_bert / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert not tokenizer.same_ids(Tokenizer(tmp_path))


def test_no_texts_make_an_empty_table(tokenizer):
    assert len(tokenizer([], 8).lengths) == 0


def test_a_larger_vocabulary_than_the_weights_is_refused(tokenizer, tiny_bert):
    with pytest.raises(EndxError, match=r"does not match the weights in .*: it has \d+ tokens and the weights have 10"):
        tokenizer.check_matches(10, 0, tiny_bert)


def test_another_padding_id_than_the_weights_expect_is_refused(tokenizer, tiny_bert):
    with pytest.raises(EndxError, match=r"it pads with id \d+ and the weights expect 77"):
        tokenizer.check_matches(10**6, 77, tiny_bert)


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    with pytest.raises(EndxError, match="holds no tokenizer"):
        Tokenizer(tmp_path)


def test_a_saved_tokenizer_is_the_same(tokenizer, tmp_path):
    tokenizer.save(tmp_path)
    np.testing.assert_array_equal(Tokenizer(tmp_path)(["the cat"], 8).ids, tokenizer(["the cat"], 8).ids)
