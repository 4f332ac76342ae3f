"""Filters on the metadata of documents, as conditions of SQL."""

from collections.abc import Mapping

from endx_jax.errors import EndxError
from endx_jax.json_files import shown

COMPARISONS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
_VALUE = "json_extract(metadata, ?)"


def condition(where: Mapping[str, object]) -> tuple[str, list[object]]:
    """Returns the SQL condition of a filter and its bound values.

    Args:
      where: for each field of the metadata its value, a list of accepted values, or bounds such as
        `{"gte": 2020, "lt": 2025}`. Documents meet all of them. A bound compares numbers with numbers and texts with
        texts; true equals 1. A document without the field does not meet it.

    Raises:
      EndxError: the filter has another form.
    """
    parts: list[str] = []
    values: list[object] = []
    for name, wanted in where.items():
        if not isinstance(name, str) or not name or '"' in name:
            raise EndxError(f"the filter names the field {shown(name)}: fields are names without quotation marks")
        path = f'$."{name}"'
        if isinstance(wanted, Mapping):
            unknown = [key for key in wanted if key not in COMPARISONS]
            if unknown or not wanted:
                raise EndxError(f"the filter of {name!r} has bounds {shown(dict(wanted))}: use gt, gte, lt or lte")
            for key, bound in wanted.items():
                types = "('text')" if isinstance(_scalar(name, bound), str) else "('integer', 'real')"
                parts.append(f"typeof({_VALUE}) IN {types} AND {_VALUE} {COMPARISONS[key]} ?")
                values += [path, path, bound]
        else:
            accepted = list(wanted) if isinstance(wanted, list | tuple) else [wanted]
            parts.append(f"{_VALUE} IN ({', '.join('?' * len(accepted))})")
            values += [path, *(_scalar(name, value) for value in accepted)]
    return " AND ".join(parts) or "1", values


def _scalar(name: str, value: object) -> str | int | float:
    if not isinstance(value, str | int | float) or (isinstance(value, int) and abs(value) >= 2**63):
        raise EndxError(f"the filter of {name!r} compares with {shown(value)}: use a text, a number or a truth value")
    return value
