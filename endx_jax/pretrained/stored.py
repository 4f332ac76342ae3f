"""Arrays in safetensors files whose parts are read on demand, so that no host has to hold a whole model."""

import dataclasses
import hashlib
import itertools
import json
import math
import pathlib
import struct
from collections.abc import Iterable, Mapping
from types import EllipsisType

import ml_dtypes
import numpy as np

from endx_jax import json_files
from endx_jax.errors import EndxError
from endx_jax.files import replacing

# NumPy dtypes by their names in safetensors.
DTYPES = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    "U64": np.uint64,
    "U32": np.uint32,
    "U16": np.uint16,
    "U8": np.uint8,
    "BOOL": np.bool_,
}


FLOAT32 = np.dtype(np.float32)


@dataclasses.dataclass(frozen=True)
class StoredArray:
    """An array that is read when it is indexed by slices or converted to a NumPy array.

    Reading raises EndxError, which names the tensor, if a part holds NaN or infinity.

    Attributes:
      file: safetensors file.
      name: name of the tensor there.
      stored_dtype: its type in the file.
      offset: byte of the file at which the array begins.
      shape: shape of the array.
      strides: bytes from one item to the next along each axis.
      dtype: type to which values are converted when they are read.
    """

    file: pathlib.Path
    name: str
    stored_dtype: np.dtype
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype = FLOAT32

    def astype(self, dtype: str) -> "StoredArray":
        """Returns the array with another type of the values that are read; `bfloat16` is one."""
        return dataclasses.replace(self, dtype=np.dtype(dtype))

    @property
    def T(self) -> "StoredArray":
        """Transpose of a matrix."""
        return dataclasses.replace(self, shape=self.shape[::-1], strides=self.strides[::-1])

    def split(self, parts: int) -> "list[StoredArray]":
        """Returns equal parts of the first axis, whose length is a multiple of `parts`."""
        rows = self.shape[0] // parts
        return [
            dataclasses.replace(self, offset=self.offset + n * rows * self.strides[0], shape=(rows, *self.shape[1:]))
            for n in range(parts)
        ]

    def __getitem__(self, index: slice | EllipsisType | tuple) -> np.ndarray:
        """Reads a part, contiguous: `array[10:20]`, `array[:, 3:]`, `array[...]`."""
        # Map the file for each read: only the pages of this part are read, and they are released afterwards.
        mapped = np.memmap(self.file, np.uint8, "r")
        whole = np.ndarray(self.shape, self.stored_dtype, mapped, self.offset, self.strides)
        # float64 beyond the range of float32 becomes infinite; comparisons of bfloat16 with NaN would warn.
        with np.errstate(over="ignore", invalid="ignore"):
            part = np.array(whole[index], self.dtype, order="C")
            # NaN is the least and the greatest of all; unlike np.isfinite(part), this allocates nothing.
            bounds = np.float32(part.min(initial=0)), np.float32(part.max(initial=0))
        if not np.isfinite(bounds).all():
            raise EndxError(
                f"{self.file}: tensor {self.name!r} holds NaN or infinity: the file is damaged, or its training "
                "diverged; copy the file again, or use an earlier checkpoint"
            )
        return part

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        """Reads the whole array."""
        del copy  # the result is always a copy
        return self[...].astype(dtype or self.dtype, copy=False)


def open_file(file: pathlib.Path) -> dict[str, StoredArray]:
    """Returns the tensors of a safetensors file by name, without reading them."""
    import safetensors

    try:
        with safetensors.safe_open(file, "numpy"):  # checks lengths, types and offsets against the file's size
            pass
        with file.open("rb") as opened:
            (length,) = struct.unpack("<Q", opened.read(8))
            header = json_files.parse(opened.read(length), f"{file}: the header", dict)
    except (safetensors.SafetensorError, OSError) as failure:
        if isinstance(failure, safetensors.SafetensorError):
            json_files.check_contents(file)
        raise EndxError(f"{file} can't be read as safetensors: {failure}") from None
    header.pop("__metadata__", None)
    return {name: _described(file, name, about, 8 + length) for name, about in header.items()}


def metadata_of(file: pathlib.Path) -> dict[str, str]:
    """Returns the texts that a safetensors file, which `open_file` has read, stores with its tensors."""
    import safetensors

    with safetensors.safe_open(file, "numpy") as opened:
        return opened.metadata() or {}


def write_file(
    file: pathlib.Path,
    shapes: Mapping[str, tuple[int, ...]],
    arrays: Iterable[np.ndarray],
    metadata: Mapping[str, str] | None = None,
) -> str:
    """Writes float32 arrays to a safetensors file, with one array in memory at a time.

    Args:
      file: file to write; missing parent folders are created.
      shapes: shapes of the arrays by name.
      arrays: the arrays, in the order of `shapes`.
      metadata: texts to store with them.

    Returns:
      The file's SHA-256 in hexadecimal.
    """
    header: dict[str, dict] = {"__metadata__": {"format": "pt", **(metadata or {})}}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + math.prod(shape) * np.dtype(np.float32).itemsize
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": (start, end)}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # aligns tensors to 8 bytes
    digest = hashlib.sha256()
    with replacing(file, "wb") as stream:
        parts = (np.ascontiguousarray(array, "<f4").tobytes() for array in arrays)
        for part in itertools.chain([struct.pack("<Q", len(text)), text], parts):
            digest.update(part)
            stream.write(part)
    return digest.hexdigest()


def _described(file: pathlib.Path, name: str, about: dict, data: int) -> StoredArray:
    kind, shape = about["dtype"], tuple(about["shape"])
    if kind not in DTYPES:
        raise EndxError(f"{file}: tensor {name!r} has dtype {kind}, which is none of {', '.join(DTYPES)}")
    dtype = np.dtype(DTYPES[kind])
    strides = tuple(dtype.itemsize * math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    return StoredArray(file, name, dtype, data + about["data_offsets"][0], shape, strides)
