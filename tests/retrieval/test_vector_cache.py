import numpy as np
import pytest

from endx_jax.retrieval.vector_cache import VectorCache

VALUES = np.arange(24, dtype=np.float32).reshape(6, 2, 2)


@pytest.fixture
def made():
    return []


@pytest.fixture
def blocks(made):
    def give():
        made.append(1)
        yield VALUES[:4]
        yield VALUES[4:]

    return give


def test_vectors_are_made_once_and_mapped(tmp_path, blocks, made):
    first = VectorCache(tmp_path).vectors("k", (6, 2, 2), blocks)
    again = VectorCache(tmp_path).vectors("k", (6, 2, 2), blocks)
    np.testing.assert_array_equal(first, VALUES)
    np.testing.assert_array_equal(again, VALUES)
    assert len(made) == 1
    assert isinstance(again.base, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        again[0] = 1
    VectorCache(tmp_path).vectors("other", (6, 2, 2), blocks)
    assert len(made) == 2


def change(byte):
    def damage(file):
        contents = bytearray(file.read_bytes())
        contents[byte] ^= 1
        file.write_bytes(contents)

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        change(-1),
        change(200),
        change(20),
        lambda file: file.write_bytes(file.read_bytes()[:-8]),
        lambda file: file.write_bytes(b""),
    ],
    ids=["checksum", "values", "header", "cut", "empty"],
)
def test_a_damaged_entry_is_made_again(tmp_path, blocks, made, damage):
    cache = VectorCache(tmp_path)
    cache.vectors("k", (6, 2, 2), blocks)
    (file,) = tmp_path.iterdir()
    damage(file)
    np.testing.assert_array_equal(cache.vectors("k", (6, 2, 2), blocks), VALUES)
    assert len(made) == 2
    cache.vectors("k", (6, 2, 2), blocks)
    assert len(made) == 2


def test_an_entry_of_another_shape_is_made_again(tmp_path, blocks, made):
    cache = VectorCache(tmp_path)
    cache.vectors("k", (6, 2, 2), blocks)
    cache.vectors("k", (6, 4), lambda: (block.reshape(-1, 4) for block in blocks()))
    assert len(made) == 2


def test_where_nothing_can_be_kept_vectors_are_in_memory(tmp_path, blocks):
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="nothing is kept for a faster start"):
        found = VectorCache(tmp_path / "file").vectors("k", (6, 2, 2), blocks)
    np.testing.assert_array_equal(found, VALUES)
