import numpy as np
import pytest

from endx_jax.inference.vector_cache import VectorCache

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
    VectorCache(tmp_path).vectors("k", (6, 4), lambda: (block.reshape(-1, 4) for block in blocks()))
    assert len(made) == 3  # an entry of another shape is made again


def change(byte):
    def damage(file):
        contents = bytearray(file.read_bytes())
        contents[byte] ^= 1
        file.write_bytes(contents)

    return damage


def cut(length):
    return lambda file: file.write_bytes(file.read_bytes()[:length])


@pytest.mark.parametrize("damage", [change(-1), change(200), change(20), cut(-8), cut(0)])
def test_a_damaged_entry_is_made_again(tmp_path, blocks, made, damage):
    cache = VectorCache(tmp_path)
    cache.vectors("k", (6, 2, 2), blocks)
    (file,) = tmp_path.iterdir()
    damage(file)
    np.testing.assert_array_equal(cache.vectors("k", (6, 2, 2), blocks), VALUES)
    assert len(made) == 2
    cache.vectors("k", (6, 2, 2), blocks)
    assert len(made) == 2


def test_vectors_stay_in_memory_without_a_writable_cache(tmp_path, blocks):
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="nothing is cached for the next run"):
        found = VectorCache(tmp_path / "file").vectors("k", (6, 2, 2), blocks)
    np.testing.assert_array_equal(found, VALUES)
