"""Settings from mappings: every mistake is one line that names the setting."""

import dataclasses
import json

import pytest
from refusals import check_refusal

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
    ("mapping", "words"),
    [
        ({"cuont": 1}, "example.cuont 'count' name, count,"),
        ({"inner": {"dept": 1}}, "example.inner.dept 'depth'"),
        ({"zzzzzzzz": 1}, "example.zzzzzzzz name, count,"),
        ({"name": 3}, "example.name 3 int str"),
        ({"name": None}, "example.name None NoneType str"),
        ({"count": "3"}, "example.count '3' str int"),
        ({"count": 3.0}, "example.count 3.0 float int"),
        ({"count": True}, "example.count True bool int"),
        ({"rate": True}, "example.rate True bool float"),
        ({"rate": "0.1"}, "example.rate '0.1' str float"),
        ({"active": 1}, "example.active 1 int bool"),
        ({"limit": "many"}, "example.limit 'many' str int empty"),
        ({"limit": False}, "example.limit False bool int empty"),
        ({"names": "ab"}, "example.names 'ab' str tuple"),
        ({"inner": 1}, "example.inner 1 object"),
        ({"inner": {"depth": "2"}}, "example.inner.depth '2' str int"),
    ],
)
def test_unknown_names_and_values_of_another_type_are_refused(mapping, words):
    check_refusal(lambda: from_mapping(Example, mapping, "example"), *words.split())


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
    check_refusal(lambda: check_choice("example.name", "means", ("sum", "mean")), "example.name", "'means'", "'mean'?")
