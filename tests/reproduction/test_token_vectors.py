"""Each token's vectors in each layer, in the files that AllenNLP keeps them in."""

import json

import numpy as np
import pytest
from helpers import one_line_error

from reproduction.token_vectors import read_token_vectors

LENGTHS = (3, 1, 4)
LAYERS = [np.random.default_rng(n).normal(size=(3, n, 5)).astype(np.float32) for n in LENGTHS]


def write_hdf5(path, layers=LAYERS):
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        for number, values in enumerate(layers):
            file.create_dataset(str(number), values.shape, "float32", data=values)
        sentences = file.create_dataset("sentence_to_index", (1,), dtype=h5py.special_dtype(vlen=str))
        sentences[0] = json.dumps({"a b c": "0"})
    return path


def test_allennlps_file(tmp_path):
    found = [*read_token_vectors(write_hdf5(tmp_path / "elmo.hdf5"), LENGTHS)]
    for values, expected in zip(found, LAYERS, strict=True):
        np.testing.assert_array_equal(values, expected)


def test_a_file_of_averages_has_one_layer(tmp_path):
    found = [*read_token_vectors(write_hdf5(tmp_path / "elmo.hdf5", [x.mean(0) for x in LAYERS]), LENGTHS)]
    assert [x.shape for x in found] == [(1, 3, 5), (1, 1, 5), (1, 4, 5)]


@pytest.mark.parametrize(
    ("lengths", "message"),
    [((3, 1), "vectors of 3 texts where 2 were asked for"), ((3, 2, 4), "text 1: vectors of shape .3, 1, 5.")],
)
def test_a_file_of_other_texts_is_refused(tmp_path, lengths, message):
    file = write_hdf5(tmp_path / "elmo.hdf5")
    with one_line_error(message):
        [*read_token_vectors(file, lengths)]


def test_a_damaged_file_is_named(tmp_path):
    pytest.importorskip("h5py")
    (tmp_path / "elmo.hdf5").write_bytes(b"damaged")
    with one_line_error("elmo.hdf5 can't be read"):
        [*read_token_vectors(tmp_path / "elmo.hdf5", LENGTHS)]
