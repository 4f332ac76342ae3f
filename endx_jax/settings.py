"""Settings: frozen dataclasses whose fields say what they mean, and their way from and to plain mappings.

Every component declares its own keys beside its own code, with `key`. Recipes hold them as one tree; `experiment` turns
the tree back into these dataclasses, and nothing below ever sees a config object.
"""

import dataclasses
import types
import typing
from collections.abc import Mapping

from endx_jax.errors import EndxError, nearest


def key(default, doc: str, *, changes_results: bool = True, older: Mapping | None = None):
    """Declares one setting.

    Args:
      default: its default; a type, rather than a value, is not accepted: every setting has one.
      doc: what it is, with its unit and source.
      changes_results: false for what changes cost, logging or places only. A resumed run may change those.
      older: values with which configs were once written, to what says the same today.
    """
    metadata = {"doc": doc, "changes_results": changes_results, "older": older or {}}
    return dataclasses.field(default=default, metadata=metadata)


def check(condition: bool, message: str) -> None:
    """Raises EndxError with `message` unless `condition` holds; for `__post_init__` of settings."""
    if not condition:
        raise EndxError(message)


def check_choice(where: str, value: str, choices) -> None:
    """Raises EndxError unless `value` is one of `choices`, naming them all."""
    if value not in choices:
        raise EndxError(f"{where} is {value!r}, which is none of {', '.join(choices)}{nearest(value, choices)}")


def from_mapping(cls, mapping: Mapping, where: str):
    """Builds the settings dataclass `cls` from a mapping.

    Args:
      cls: a dataclass whose fields were declared with `key`.
      mapping: values by name; missing names keep their defaults.
      where: the prefix of the names in messages, such as `objective`.

    Raises:
      EndxError: for an unknown name, naming the nearest known one, or a value of the wrong type.
    """
    known = typing.get_type_hints(cls)
    for name in mapping:
        if name not in known:
            raise EndxError(
                f"unknown setting {where}.{name}{nearest(name, known)} (the settings of {where}: {', '.join(known)})"
            )
    older = {field.name: field.metadata.get("older", {}) for field in dataclasses.fields(cls)}
    values = {name: _as_today(value, older[name]) for name, value in mapping.items()}
    return cls(**{name: _typed(value, known[name], f"{where}.{name}") for name, value in values.items()})


def results_only(settings, where: str = "") -> dict[str, object]:
    """All settings that change results, flattened to dotted names, for comparing two runs."""
    flat: dict[str, object] = {}
    for field in dataclasses.fields(settings):
        value, name = getattr(settings, field.name), f"{where}{field.name}"
        if dataclasses.is_dataclass(value):
            flat |= results_only(value, f"{name}.")
        elif field.metadata.get("changes_results", True):
            flat[name] = _listed(value)
    return flat


def _as_today(value, older: Mapping):
    """The value, or what says the same today; by identity, as True is not 1 here."""
    return next((new for old, new in older.items() if value is old), value)


def _listed(value):
    """Turns tuples into lists at every depth, as JSON does, so that settings compare with those read from a file."""
    return [_listed(v) for v in value] if isinstance(value, tuple | list) else value


def _typed(value, hint, name: str):
    """Returns `value` as the hinted type; integers pass for floats and lists for tuples, nothing else is converted."""
    accepted = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    accepted = tuple(typing.get_origin(a) or a for a in accepted)
    if float in accepted and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if tuple in accepted and isinstance(value, list | tuple):
        return tuple(tuple(v) if isinstance(v, list) else v for v in value)
    if (isinstance(value, bool) and bool not in accepted) or not isinstance(value, accepted):
        wanted = " or ".join("empty" if a is types.NoneType else a.__name__ for a in accepted)
        raise EndxError(f"{name} is {value!r}, a {type(value).__name__}; it must be {wanted}")
    return value
