import numpy as np
import pytest
from helpers import refused

from endx_jax.data.sets.documents import Document
from endx_jax.index.filters import condition, why_nothing
from endx_jax.index.index import Index, write_index

METADATA = [
    {"lang": "en", "year": 2019, "public": True},
    {"lang": "de", "year": 2020.5, "date": "2024-11-24"},
    {"lang": "fr", "year": "2021", "a.b": 1, "': --": "x", "depth": "-3.5", "public": "True"},
    {"a\\b": 1, "\n": "x", "version": "1.10.2", "count": "7.0", "flag": "--5", "range": "1-5"},
]


@pytest.fixture
def snapshot(tmp_path):
    documents = [Document(str(n), "text", metadata) for n, metadata in enumerate(METADATA)]
    write_index(tmp_path / "i", np.ones((4, 2), np.float32), documents, metric="cosine", model={})
    return Index(tmp_path / "i").snapshot


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


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({'a"b': 1}, "the filter names the field .*: fields are names of 1 to 200 characters without quot"),
        ({"": 1}, "the filter names the field ''"),
        ({"a\0b": 1}, "the filter names the field .*: fields are names of 1 to 200 characters"),
        ({"a" * 201: 1}, "the filter names the field .*: fields are names of 1 to 200 characters"),
        ({f"{n}": {"gt": 1, "lt": 9} for n in range(51)}, "the filter has 102 conditions .*: a filter has at most 100"),
        ({"lang": [*map(str, range(10_001))]}, "the filter has 1 condition and 10,002 values: .* and 10,000 values"),
        ({"year": {"above": 3}}, "the filter of 'year' has bounds .*: use gt, gte, lt or lte"),
        ({"year": {}}, "the filter of 'year' has bounds"),
        ({"year": None}, "the filter of 'year' compares with .*: use a text, a number or a truth value"),
        ({"year": [[1]]}, "the filter of 'year' compares with"),
        ({"year": 2**70}, "the filter of 'year' compares with"),
        ({"year": {"gte": float("nan")}}, "the filter of 'year' compares with nan"),
        ({"\ud800": 1}, r"the name of a field in the filter holds '\\ud800', half a surrogate pair"),
        ({"lang": ["en", "\ud800"]}, r"the filter of 'lang' holds '\\ud800', half a surrogate pair"),
    ],
)
def test_other_filters_are_refused(snapshot, where, message):
    refused(message, condition, where)
    refused(message, snapshot.where, {**where, 1: 2} if "year" in where else where)
