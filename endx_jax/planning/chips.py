"""Accelerators by their data sheets: what the best program could do on them, and what they hold."""

import dataclasses

from endx_jax.errors import EndxError, nearest


@dataclasses.dataclass(frozen=True)
class Chip:
    """Data sheet of one device.

    Attributes:
      name: name for `endx plan --chip`.
      kinds: first words of `jax.Device.device_kind`.
      flops: dense bfloat16 products with float32 sums, FLOP/s; float16 for a T4, which has no bfloat16.
      memory: bytes.
      bandwidth: bandwidth of that memory, bytes/s.
      link: to other devices of the same slice or node, all links (or PCIe) together, one way, bytes/s.
      platform: `tpu` or `gpu`.
    """

    name: str
    kinds: tuple[str, ...]
    flops: float
    memory: int
    bandwidth: float
    link: float
    platform: str = "tpu"


# Share of a chip's memory for programs; the rest is for the runtime and fragmentation.
USABLE = 0.92
_GIB = 2**30
CHIPS = {
    chip.name: chip
    for chip in (
        Chip("v4", ("TPU v4",), 275e12, 32 * _GIB, 1200e9, 300e9),
        Chip("v5e", ("TPU v5 lite", "TPU v5e"), 197e12, 16 * _GIB, 819e9, 200e9),
        Chip("v5p", ("TPU v5p", "TPU v5"), 459e12, 95 * _GIB, 2765e9, 600e9),
        Chip("v6e", ("TPU v6 lite", "TPU v6e"), 918e12, 32 * _GIB, 1638e9, 400e9),
        Chip("T4", ("Tesla T4", "NVIDIA T4"), 65e12, 16 * 10**9, 320e9, 16e9, "gpu"),
        Chip("L4", ("NVIDIA L4",), 121e12, 24 * 10**9, 300e9, 32e9, "gpu"),
        Chip("A10G", ("NVIDIA A10G",), 70e12, 24 * 10**9, 600e9, 32e9, "gpu"),
        Chip("RTX4090", ("NVIDIA GeForce RTX 4090",), 165.2e12, 24 * 10**9, 1008e9, 32e9, "gpu"),
        Chip("A100", ("NVIDIA A100",), 312e12, 80 * 10**9, 2039e9, 300e9, "gpu"),
        Chip("H100", ("NVIDIA H100",), 989e12, 80 * 10**9, 3350e9, 450e9, "gpu"),
        Chip("H200", ("NVIDIA H200",), 989e12, 141 * 10**9, 4800e9, 450e9, "gpu"),
    )
}


def chip_named(name: str, flag: str = "--chip") -> Chip:
    """Returns the chip of that name, which came with a flag of the command line."""
    by_name = {chip.lower(): chip for chip in CHIPS}
    if name.lower() not in by_name:
        raise EndxError(f"{flag}={name} is none of {', '.join(CHIPS)}{nearest(name, CHIPS)}")
    return CHIPS[by_name[name.lower()]]


def chip_of(device_kind: str) -> Chip | None:
    """The chip that a device is, by its kind; None where it is no chip of ours."""
    kinds = [(kind, chip) for chip in CHIPS.values() for kind in chip.kinds]
    longest_first = sorted(kinds, key=lambda pair: -len(pair[0]))
    return next((chip for kind, chip in longest_first if f"{device_kind} ".startswith((f"{kind} ", f"{kind}-"))), None)
