"""Filters on the metadata of documents, as conditions of SQL."""

import itertools
import json
import math
from collections.abc import Callable, Mapping

import numpy as np

from endx_jax.errors import EndxError, counted
from endx_jax.json_files import as_text, shown

# Limits of the size of a filter, since the metadata of every document is compared with it.
MOST_CONDITIONS, MOST_VALUES, LONGEST_NAME = 100, 10_000, 200

COMPARISONS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
_VALUE = "json_extract(metadata, ?)"
# Columns of CSV files are stored as text, so text that is a number compares as one.
_DIGITS = f"{_VALUE} GLOB '[-.0-9]*' AND substr({_VALUE}, 2) NOT GLOB '*[^.0-9]*'"
_NUMERAL = f"{_DIGITS} AND {_VALUE} GLOB '*[0-9]*' AND {_VALUE} NOT GLOB '*.*.*'"
_NUMBER = f"(typeof({_VALUE}) IN ('integer', 'real') OR ({_NUMERAL})) AND CAST({_VALUE} AS NUMERIC)"


class FilterLimit(EndxError):
    """Error about a filter that exceeds a limit."""


def condition(where: Mapping[str, object]) -> tuple[str, list[object]]:
    """Returns the SQL condition of a filter and its bound values.

    Args:
      where: for each field of the metadata its value, a list of accepted values, or bounds such as
        `{"gte": 2020, "lt": 2025}`. Documents meet all of them. A number also matches text that is this number;
        bounds that are text compare with text. True equals 1. A document without the field does not meet it.

    Raises:
      EndxError: the filter has another form, or holds half a surrogate pair; a `FilterLimit` if it exceeds a limit.
    """
    if not isinstance(where, Mapping):
        raise EndxError(f"the filter is {shown(where)}: give a dictionary of fields and values")
    if len(where) > MOST_CONDITIONS:
        raise FilterLimit(f"the filter has {len(where):,} fields: a filter has at most {MOST_CONDITIONS} conditions")
    parts: list[str] = []
    values: list[object] = []
    for name, wanted in where.items():
        if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME or '"' in name or "\0" in name:
            reason = f"fields are names of 1 to {LONGEST_NAME} characters without quotation marks"
            raise FilterLimit(f"the filter names the field {shown(name)}: {reason}")
        as_text(name, "the name of a field in the filter", may_be_empty=True)
        path = f"$.{json.dumps(name, ensure_ascii=False)}"  # with the escapes that the stored metadata have
        if isinstance(wanted, Mapping):
            unknown = [key for key in wanted if key not in COMPARISONS]
            if unknown or not wanted:
                raise EndxError(f"the filter of {name!r} has bounds {shown(dict(wanted))}: use gt, gte, lt or lte")
            for key, bound in wanted.items():
                if isinstance(_scalar(name, bound), str):
                    parts.append(f"typeof({_VALUE}) = 'text' AND {_VALUE} {COMPARISONS[key]} ?")
                    values += [path, path, bound]
                else:
                    parts.append(f"{_NUMBER} {COMPARISONS[key]} ?")
                    values += [*[path] * _NUMBER.count("?"), bound]
        else:
            accepted = [_scalar(name, value) for value in (wanted if isinstance(wanted, list | tuple) else [wanted])]
            choices = [(_VALUE, accepted)]
            if numbers := [value for value in accepted if type(value) in (int, float)]:
                choices.append((_NUMBER, numbers))
            alternatives = [f"{sql} IN ({', '.join('?' * len(of))})" for sql, of in choices]
            parts.append(f"({' OR '.join(alternatives)})")
            values += [bound for sql, of in choices for bound in (*[path] * sql.count("?"), *of)]
    if len(parts) > MOST_CONDITIONS or len(values) > MOST_VALUES:
        most = f"a filter has at most {MOST_CONDITIONS} conditions and {MOST_VALUES:,} values"
        raise FilterLimit(f"the filter has {counted(len(parts), 'condition')} and {len(values):,} values: {most}")
    return " AND ".join(parts) or "1", values


def why_nothing(select: Callable[[Mapping[str, object]], np.ndarray], where: Mapping[str, object]) -> str:
    """Returns the reason why a filter selects no document; an empty string if it selects some.

    Args:
      select: returns true for each document that a filter selects, such as `Snapshot.where`.
      where: the filter.
    """
    if select(where).any():
        return ""
    for name, wanted in itertools.islice(where.items(), 10):  # each check takes as long as a filter
        if not any(select({name: {"gte": least}}).any() for least in ("", -1e308)):  # of texts and of numbers
            return f"no document has the field {name!r}, which the filter names"
        if not select({name: wanted}).any():
            return f"no document has a {name!r} that matches {shown(wanted)}"
    return "no document meets all conditions of the filter"


def _scalar(name: str, value: object) -> str | int | float:
    if not isinstance(value, str | int | float) or (isinstance(value, int) and abs(value) >= 2**63):
        raise EndxError(f"the filter of {name!r} compares with {shown(value)}: use a text, a number or a truth value")
    if isinstance(value, float) and math.isnan(value):
        raise EndxError(f"the filter of {name!r} compares with nan, which no value equals: use another number")
    return (
        as_text(value, f"the filter of {name!r}", may_be_empty=True, strip=False) if isinstance(value, str) else value
    )
