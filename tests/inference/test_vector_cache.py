import numpy as np
import pytest
from refusals import check_refusal

from endx_jax.inference.vector_cache import BLOCK, VectorCache

PARTS = [BLOCK, 6]
TEXTS = [*map(str, range(sum(PARTS)))]
VALUES = np.arange(4 * len(TEXTS), dtype=np.float32).reshape(-1, 4)


@pytest.fixture
def made():
    """Numbers of texts that were encoded at a time."""
    return []


def embeddings(folder, made, about="k", width=4):
    def encode(texts):
        made.append(len(texts))
        return VALUES[[*map(int, texts)], :width]

    return VectorCache(folder).embeddings(encode, TEXTS, (about,), width, name="a model")


def test_vectors_are_made_once_and_mapped(tmp_path, made):
    np.testing.assert_array_equal(embeddings(tmp_path, made), VALUES)
    again = embeddings(tmp_path, made)
    np.testing.assert_array_equal(again, VALUES)
    assert made == PARTS
    assert isinstance(again.base, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        again[0] = 1
    for changed in ({"about": "other"}, {"width": 2}):  # an entry of another width is made again
        made.clear()
        embeddings(tmp_path, made, **changed)
        assert made == PARTS


def change(byte):
    def damage(file):
        contents = bytearray(file.read_bytes())
        contents[byte] ^= 1
        file.write_bytes(contents)

    return damage


def cut(length):
    return lambda file: file.write_bytes(file.read_bytes()[:length])


@pytest.mark.parametrize("damage", [change(-1), change(200), change(20), cut(-8), cut(0)])
def test_a_damaged_entry_is_made_again(tmp_path, made, damage):
    embeddings(tmp_path, made)
    (file,) = tmp_path.iterdir()
    damage(file)
    for _ in range(2):
        np.testing.assert_array_equal(embeddings(tmp_path, made), VALUES)
    assert made == PARTS * 2


def test_an_error_of_the_model_is_not_one_of_the_cache(tmp_path):
    made = VectorCache(tmp_path).embeddings
    check_refusal(lambda: made(lambda texts: np.full((1, 4), np.nan), TEXTS[:1], ("k",), 4, name="a model"), "a model")
    assert [*tmp_path.iterdir()] == []


def test_vectors_stay_in_memory_without_a_writable_cache(tmp_path, made):
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="nothing is cached for the next run"):
        found = embeddings(tmp_path / "file", made)
    np.testing.assert_array_equal(found, VALUES)
