"""Reader of rotary position embeddings from `config.json`, in the notations of transformers 4 and 5."""

import dataclasses
from collections.abc import Mapping

from endx_jax.errors import EndxError
from endx_jax.models.config_keys import HuggingFaceConfig, choice, fraction
from endx_jax.models.transformer import Rope


@dataclasses.dataclass(frozen=True)
class RopeParameters(HuggingFaceConfig):
    """Contents of `rope_parameters`, or of `rope_scaling` with a base.

    Attributes:
      base: base of the wavelengths (`rope_theta`).
      kind: scaling of positions: none, by `factor`, or NTK-aware with a fixed factor (kexue.fm/archives/9706).
      factor: factor of the scaling.
      part: part of a head that is rotated; only all of it is supported.
    """

    base: float = fraction("rope_theta", least=1, most=1e12)
    kind: str = choice("rope_type", "type", choices=("default", "linear", "ntk"), default="default")
    factor: float = fraction("factor", default=1.0, least=1.0, most=1e6)
    part: float = fraction("partial_rotary_factor", default=1.0, least=1.0, most=1.0)


def read_rope(parameters: Mapping | None, base: object, head_width: int, where: object) -> Rope:
    """Returns the rotary position embeddings of a layer.

    Args:
      parameters: `rope_parameters` or `rope_scaling`; None if the file has neither.
      base: the base if `parameters` state none.
      head_width: width Dh of a head.
      where: the file, for messages.

    Raises:
      EndxError: a parameter is not supported, or a head's width is odd.
    """
    if head_width % 2:
        raise EndxError(f"{where}: heads are {head_width} wide; rotary position embeddings need an even width")
    found = RopeParameters.from_hugging_face({"rope_theta": base} | dict(parameters or {}), where)
    if found.kind == "linear":
        return Rope(found.base, found.factor)
    if found.kind == "ntk":
        return Rope(found.base * found.factor, found.factor ** (2 / head_width))
    return Rope(found.base)
