import numpy as np
import pytest
from small_index import make_index

from endx_jax.data.sets.documents import Document
from endx_jax.index.filters import why_nothing

METADATA = [
    {"lang": "en", "year": 2019, "public": True},
    {"lang": "de", "year": 2020.5, "date": "2024-11-24"},
    {"lang": "fr", "year": "2021", "a.b": 1, "': --": "x", "depth": "-3.5", "public": "True"},
    {"a\\b": 1, "\n": "x", "version": "1.10.2", "count": "7.0", "flag": "--5", "range": "1-5"},
]


@pytest.fixture
def snapshot(tmp_path):
    documents = [Document(str(n), "text", metadata) for n, metadata in enumerate(METADATA)]
    return make_index(tmp_path / "i", np.ones((4, 2), np.float32), documents).snapshot


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (None, [0, 1, 2, 3]),
        ({}, [0, 1, 2, 3]),
        ({"lang": "de"}, [1]),
        ({"lang": ["en", "fr"]}, [0, 2]),
        ({"lang": []}, []),
        ({"lang": "de", "year": {"gte": 2020}}, [1]),
        ({"year": {"gte": 2019, "lt": 2020.5}}, [0]),
        ({"year": {"gt": 2019}}, [1, 2]),
        ({"year": {"gt": 2019, "lte": 2020.5}}, [1]),
        ({"year": {"gte": "2000"}}, [2]),
        ({"depth": {"lt": -3}}, [2]),
        ({"year": 2021}, [2]),
        ({"year": [2019, 2021]}, [0, 2]),
        ({"count": [7, 8]}, [3]),
        ({"version": {"lt": 2}}, []),
        ({"flag": {"lte": 0}}, []),
        ({"range": {"lte": 9}}, []),
        ({"lang": {"gte": 0}}, []),
        ({"date": {"gte": "2024-01-01", "lt": "2025"}}, [1]),
        ({"date": {"gte": 0}}, []),
        ({"public": True}, [0]),
        ({"public": False}, []),
        ({"a.b": 1}, [2]),
        ({"': --": "x"}, [2]),
        ({"missing": 1}, []),
        ({"a\\b": 1, "\n": "x"}, [3]),
        ({"lang": "' OR 1 = 1 --"}, []),
    ],
)
def test_documents_are_selected_by_their_metadata(snapshot, where, expected):
    assert np.flatnonzero(snapshot.where(where)).tolist() == expected


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ({"lang": "de"}, ""),
        ({"langg": "de"}, "no document has the field 'langg', which the filter names"),
        ({"lang": "es"}, "no document has a 'lang' that matches 'es'"),
        ({"lang": "de", "depth": {"gte": 0}}, "no document has a 'depth' that matches {'gte': 0}"),
        ({"lang": "de", "public": True}, "no document meets all conditions of the filter"),
    ],
)
def test_a_filter_that_lets_nothing_through_is_explained(snapshot, where, expected):
    assert why_nothing(snapshot.where, where) == expected
