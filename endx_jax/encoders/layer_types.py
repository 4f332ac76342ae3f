"""Layers of two types: attention within a window, and to the whole text, as in `layer_types` of a `config.json`."""

from collections.abc import Mapping, Sequence

from endx_jax import json_files
from endx_jax.errors import EndxError
from endx_jax.models.layers import Rope

LOCAL, GLOBAL = "sliding_attention", "full_attention"


def read_layer_types(config: Mapping, default: Sequence[str], where: object) -> Sequence[str]:
    """Returns the type of each layer; `default` has one for each.

    Raises:
      EndxError: `layer_types` is no list of as many known types.
    """
    types = config.get("layer_types")
    if types is None:
        return default
    types = json_files.as_list(types, f"{where}: 'layer_types'")
    if len(types) != len(default) or not all(kind in [LOCAL, GLOBAL] for kind in types):
        raise EndxError(
            f"{where}: layer_types is {json_files.shown(types)}; it must name one of {LOCAL}, {GLOBAL} for each "
            f"of the {len(default)} layers"
        )
    return types


def read_ropes(
    config: Mapping, bases: Mapping[str, tuple[str, float]], scaled: Sequence[str], head_width: int, where: object
) -> dict[str, Rope]:
    """Returns the rotary positions by type of layer.

    Args:
      config: contents of a `config.json`; newer ones have `rope_parameters` by type.
      bases: key of the base in older files, and its default, by type.
      scaled: types that `rope_scaling` of older files applies to.
      head_width: width Dh of a head.
      where: the file, for messages.
    """
    stated = json_files.as_object(config.get("rope_parameters") or {}, f"{where}: 'rope_parameters'")
    ropes = {}
    for kind, (key, default) in bases.items():
        parameters = stated.get(kind) or (config.get("rope_scaling") if kind in scaled else None)
        base = default if config.get(key) is None else config[key]
        ropes[kind] = Rope.read(parameters, base, head_width, f"{where}: {kind}")
    return ropes
