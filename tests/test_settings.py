"""Settings from mappings: every mistake is one line that names the setting."""

import dataclasses
import json

import pytest
from helpers import one_line_error, refused

from endx_jax.settings import check_choice, from_mapping, key, require, results_only


@dataclasses.dataclass(frozen=True)
class Inner:
    """Settings inside settings."""

    depth: int = key(2, "levels")
    places: tuple[str, ...] = key((), "where", changes_results=False)


@dataclasses.dataclass(frozen=True)
class Example:
    """One setting of every kind."""

    name: str = key("x", "a name")
    count: int = key(3, "how many")
    rate: float = key(0.5, "how often")
    active: bool = key(True, "whether")
    limit: int | None = key(None, "at most")
    names: tuple[str, ...] = key(("ab",), "several names")
    table: tuple[tuple[str, int], ...] = key((), "rows")
    log_every: int = key(10, "steps between lines", changes_results=False)
    inner: Inner = dataclasses.field(default_factory=Inner)

    def __post_init__(self):
        require(self.count > 0, f"example.count is {self.count}; it must be positive")


def test_missing_names_keep_their_defaults():
    assert from_mapping(Example, {}, "example") == Example()
    assert from_mapping(Example, {"count": 5}, "example") == Example(count=5)
    assert from_mapping(Example, {"inner": {"depth": 3}}, "example") == Example(inner=Inner(depth=3))


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"cuont": 1}, r"unknown setting example\.cuont; did you mean 'count'\? \(the settings of example: name, c.*"),
        ({"inner": {"dept": 1}}, r"unknown setting example\.inner\.dept; did you mean 'depth'\? \(the settings of .*"),
        ({"zzzzzzzz": 1}, r"unknown setting example\.zzzzzzzz \(the settings of example: name, count, .*"),
        ({"name": 3}, "example.name is 3, a int; it must be str"),
        ({"name": None}, "example.name is None, a NoneType; it must be str"),
        ({"count": "3"}, "example.count is '3', a str; it must be int"),
        ({"count": 3.0}, "example.count is 3.0, a float; it must be int"),
        ({"count": True}, "example.count is True, a bool; it must be int"),
        ({"rate": True}, "example.rate is True, a bool; it must be float"),
        ({"rate": "0.1"}, "example.rate is '0.1', a str; it must be float"),
        ({"active": 1}, "example.active is 1, a int; it must be bool"),
        ({"limit": "many"}, "example.limit is 'many', a str; it must be int or empty"),
        ({"limit": False}, "example.limit is False, a bool; it must be int or empty"),
        ({"names": "ab"}, "example.names is 'ab', a str; it must be tuple"),
        ({"inner": 1}, "example.inner is 1; it must be an object with settings"),
        ({"inner": {"depth": "2"}}, "example.inner.depth is '2', a str; it must be int"),
    ],
)
def test_unknown_names_and_values_of_another_type_are_refused(mapping, message):
    refused(f"^{message}$", from_mapping, Example, mapping, "example")


def test_values_become_those_of_the_declared_types():
    rate = from_mapping(Example, {"rate": 1}, "example").rate
    assert (rate, type(rate)) == (1.0, float)
    assert from_mapping(Example, {"limit": None}, "example").limit is None
    assert from_mapping(Example, {"limit": 4}, "example").limit == 4
    found = from_mapping(Example, {"names": ["a", "b"], "table": [["a", 1], ["b", 2]]}, "example")
    assert (found.names, found.table) == (("a", "b"), (("a", 1), ("b", 2)))
    assert isinstance(hash(found), int)


def test_results_only_flattens_and_leaves_out_what_costs_only():
    flat = results_only(Example(table=(("a", 1),)))
    assert json.loads(json.dumps(flat)) == flat
    settings = Example(names=("ab", "c"), table=(("a", 1),), limit=7)
    expected = {"name": "x", "count": 3, "rate": 0.5, "active": True, "limit": 7, "names": ["ab", "c"]}
    assert results_only(settings) == expected | {"table": [["a", 1]], "inner.depth": 2}


def test_check_choice_names_the_choices_and_the_nearest():
    check_choice("example.name", "sum", ("sum", "mean"))
    with one_line_error("^example.name is 'means', which is none of sum, mean; did you mean 'mean'\\?$"):
        check_choice("example.name", "means", ("sum", "mean"))
