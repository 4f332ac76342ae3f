"""Settings as frozen dataclasses with documented fields, and their conversion from mappings.

Every component declares its settings with `key` next to its code. A recipe is one tree of all settings, which
`experiment` converts to these dataclasses; the packages below use no config objects.
"""

import dataclasses
import operator
import re
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from endx_jax.errors import EndxError, nearest
from endx_jax.json_files import shown

# Limits of numbers, with the words that describe them.
BOUNDS: Mapping[str, tuple[str, Callable[[float, float], bool]]] = {
    "least": ("at least", operator.ge),
    "above": ("above", operator.gt),
    "most": ("at most", operator.le),
    "below": ("below", operator.lt),
}


def key(
    default,
    doc: str,
    *,
    choices: Collection[str] = (),
    changes_results: bool = True,
    auto: object = dataclasses.MISSING,
    **bounds: float,
):
    """Declares one setting.

    Args:
      default: default value, which is always valid.
      doc: description, with unit and source; several choices are appended.
      choices: valid strings, also for the items of a tuple; empty: all. Those of a mapping may grow.
      changes_results: false if it affects only cost, logging or paths. A resumed run may change such settings.
      auto: value with which a run chooses another one when it starts, which its config.json records.
      **bounds: limits of valid numbers, also for the items of a tuple, by their names in `BOUNDS`.

    Examples:
      >>> import dataclasses
      >>> from endx_jax.settings import key
      >>> @dataclasses.dataclass(frozen=True)
      ... class Settings:
      ...     margin: float = key(0.2, "Margin between cosines.", least=0)
      >>> Settings(), dataclasses.fields(Settings)[0].metadata["doc"]
      (Settings(margin=0.2), 'Margin between cosines.')
    """
    doc += f" One of {', '.join(choices)}." if len(choices) > 1 else ""
    about = {"doc": doc, "choices": choices, "bounds": bounds, "changes_results": changes_results, "auto": auto}
    return dataclasses.field(default=default, metadata=about)


def require(condition: bool, message: str) -> None:
    """Raises EndxError with `message` unless `condition` is true; for `__post_init__` of settings."""
    if not condition:
        raise EndxError(message)


def check_choice(where: str, value: object, choices) -> None:
    """Raises EndxError, which lists all choices, unless `value` is one of them; the empty string may be a choice."""
    if not isinstance(value, str) or value not in choices:
        listed = ", ".join(filter(None, choices)) + (" (or empty)" if "" in choices else "")
        raise EndxError(f"{where} is {shown(value)}, which is none of {listed}{nearest(str(value), choices)}")


def check_patterns(where: str, patterns: Iterable[str]) -> None:
    """Raises EndxError unless each of `patterns` is a regular expression."""
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as failure:
            raise EndxError(f"{where} has {shown(pattern)}, which is no regular expression: {failure}") from None


def check_bounds(settings, where: str) -> None:
    """Raises EndxError unless all values of a settings dataclass, named `where`, are valid as `key` declares."""
    for field in dataclasses.fields(settings):
        _check_value(field, getattr(settings, field.name), f"{where}.{field.name}")


def _check_value(field: dataclasses.Field, value, name: str) -> None:
    """Raises EndxError unless a value of a field is its default, or is valid as `key` declares."""
    default: Any = field.default
    choices, bounds = field.metadata.get("choices"), field.metadata.get("bounds", {})
    for item in () if value == default else value if isinstance(value, tuple) else (value,):
        if choices:
            check_choice(name, item, tuple(dict.fromkeys((*([default] if isinstance(default, str) else []), *choices))))
        if not _within(item, bounds):
            own = "" if isinstance(default, tuple) or _within(default, bounds) else f", or {default}"
            limits = " and ".join(f"{BOUNDS[bound][0]} {limit:,}" for bound, limit in bounds.items())
            raise EndxError(f"{name} is {shown(value)}; it must be {limits}{own}")


def _within(number: Any, bounds: Mapping[str, float]) -> bool:
    return all(BOUNDS[bound][1](number, limit) for bound, limit in bounds.items())


def check_section(section: object, where: str) -> None:
    """Raises EndxError unless a section of a config is a mapping or a ConfigDict."""
    if not hasattr(section, "items"):
        raise EndxError(f"{where} is {shown(section)}; it must be an object with settings")


def check_range(where: str, value: int, least: int, most: int) -> None:
    """Raises EndxError unless `least <= value <= most`."""
    require(least <= value <= most, f"{where} is {value}; it must be from {least:,} to {most:,}")


def from_mapping(cls, mapping: Mapping, where: str):
    """Builds the settings dataclass `cls` from a mapping.

    Args:
      cls: a dataclass, whose fields may be dataclasses themselves.
      mapping: values by name; missing names keep their defaults.
      where: prefix of names in messages, such as `objective`.

    Raises:
      EndxError: a name is unknown, a name without a default is missing, or a value has the wrong type.
    """
    fields = typing.get_type_hints(cls)
    check_section(mapping, where)
    for name in mapping:
        if name not in fields:
            hint, names = nearest(name, fields), ", ".join(fields)
            raise EndxError(f"unknown setting {where}.{name:.80}{hint} (the settings of {where}: {names})")
    for field in dataclasses.fields(cls):
        needed = field.default is field.default_factory is dataclasses.MISSING
        require(field.name in mapping or not needed, f"{where} has no {field.name!r}")
    values = {name: _typed(value, fields[name], f"{where}.{name}") for name, value in mapping.items()}
    for field in dataclasses.fields(cls):
        if field.name in values:
            _check_value(field, values[field.name], f"{where}.{field.name}")
    return cls(**values)


def flattened(settings, where: str = "") -> Iterator[tuple[str, Any, Mapping]]:
    """Yields the dotted name, value and declaration of every setting, nested ones too; `where` begins the names.

    A declaration has `doc`, `changes_results` and `auto`: see `key`.
    """
    for field in dataclasses.fields(settings):
        value, name = getattr(settings, field.name), f"{where}{field.name}"
        if dataclasses.is_dataclass(value):
            yield from flattened(value, f"{name}.")
        else:
            yield name, value, field.metadata


def results_only(settings) -> dict[str, object]:
    """Returns the settings that affect results, by dotted name, without those left for the run to choose (`auto`)."""
    return {
        name: _listed(value)
        for name, value, declared in flattened(settings)
        if declared.get("changes_results", True) and value != declared.get("auto", dataclasses.MISSING)
    }


def _listed(value):
    """Converts nested tuples to lists, as JSON does, so that settings can be compared with those of a file."""
    return [_listed(v) for v in value] if isinstance(value, tuple | list) else value


def _typed(value, hint, name: str):
    """Returns `value` as the hinted type; only integers are converted to floats, and lists to tuples."""
    if dataclasses.is_dataclass(hint):
        return from_mapping(hint, value, name)
    hints = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    accepted = tuple(typing.get_origin(each) or each for each in hints)
    if type(value) is int and not -(2**63) <= value < 2**63:
        raise EndxError(f"{name} is {shown(value)}; it must fit in 64 bits")
    if value != value:
        raise EndxError(f"{name} is {value}; it must be a number")
    if float in accepted and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if tuple in accepted and isinstance(value, list | tuple):
        items = typing.get_args(hints[accepted.index(tuple)])
        if not items:  # a bare `tuple`
            return tuple(tuple(item) if isinstance(item, list) else item for item in value)
        if items[-1] is ...:
            items = items[:1] * len(value)
        if len(items) != len(value):
            raise EndxError(f"{name} is {shown(value)}; it must have {len(items)} items")
        return tuple(
            _typed(item, each, f"{name}[{n}]") for n, (item, each) in enumerate(zip(value, items, strict=True))
        )
    if (isinstance(value, bool) and bool not in accepted) or not isinstance(value, accepted):
        expected = " or ".join("empty" if a is types.NoneType else a.__name__ for a in accepted)
        raise EndxError(f"{name} is {shown(value)}, a {type(value).__name__}; it must be {expected}")
    return value
