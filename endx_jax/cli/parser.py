"""Command-line parsers made of functions: flags from the signature, their help from the docstring."""

import argparse
import inspect
import os
import re
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from docstring_parser import DocstringStyle, parse


def main_of(about: str, function: Callable, *further: Callable, **options: Any) -> Callable[[list[str]], Any]:
    """Returns the `main` of a verb: it calls a function with the arguments of the command line: see `parser_of`."""
    return lambda argv: function(**vars(parser_of(about, function, *further, **options).parse_args(argv)))


def parser_of(
    about: str,
    function: Callable,
    *further: Callable[[argparse.ArgumentParser], None],
    positional: Collection[str] = (),
    groups: Mapping[str, Sequence[str]] = types.MappingProxyType({}),
    **changes: Mapping[str, Any],
) -> argparse.ArgumentParser:
    """Returns a parser whose results are keyword arguments of a function.

    The parameter `batch_size` becomes the flag `--batch-size`, with type, default and choices of the signature. Its
    help is the description in the docstring, with the default in brackets unless the description ends in brackets,
    and without parts such as `; in Python a model too`.

    Args:
      about: docstring of the verb's module, such as "`endx merge`: averages models".
      function: function with type hints and documented arguments; `**` arguments are those of `further`.
      *further: functions that add more flags to the parser.
      positional: parameters that are no flags.
      groups: parameters by the title of their group in the help.
      **changes: arguments of `add_argument` by parameter, in place of those from the signature.
    """
    verb, _, description = about.partition(": ")
    parser = argparse.ArgumentParser(
        prog=verb.strip("`"),
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    group_of: dict[str, Any] = {}
    for title, members in groups.items():
        group_of |= dict.fromkeys(members, parser.add_argument_group(title))
    helps = {entry.arg_name: entry.description for entry in parse(function.__doc__ or "", DocstringStyle.GOOGLE).params}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        options = _options(parameter.annotation, parameter.default)
        if name in positional:
            options.pop("required", None)
        options |= {"help": _help(helps[name] or "", parameter.default), **changes.get(name, {})}
        flag = name if name in positional else f"--{name.replace('_', '-')}"
        group_of.get(name, parser).add_argument(flag, **options)
    for add in further:
        add(parser)
    return parser


def _options(hint: Any, default: Any) -> dict[str, Any]:
    """Returns the arguments of `add_argument` for a type and a default."""
    if hint is bool:
        return {"action": "store_true"}
    given: dict[str, Any] = {"required": True} if default is inspect.Parameter.empty else {"default": default}
    hint = str if isinstance(hint, str) else hint  # of a class that is imported for type checks only
    hints = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    kind = str if str in hints else hints[0]
    items = typing.get_args(kind)
    if typing.get_origin(kind) is typing.Literal:
        return given | {"choices": tuple(filter(None, items))}
    if items:  # of a sequence
        given["nargs"] = "*" if isinstance(default, Sequence) else "+"
    kind = items[0] if items else kind
    return given | ({} if kind in (str, os.PathLike) else {"type": kind}) | ({"metavar": "N"} if kind is int else {})


def _help(text: str, default: Any) -> str:
    text = re.sub("; in Python [^]]*", "", " ".join(text.split()).removesuffix(".")).replace("%", "%%")
    shown = "" if text.endswith("]") or default in (inspect.Parameter.empty, None, False, "", ()) else f" [{default}]"
    return text + shown
