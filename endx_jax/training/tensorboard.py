"""The numbers of a run as TensorBoard events, where `tensorboardX` is installed."""

import importlib.util
import os
import pathlib
import socket
import struct
import time

from endx_jax.files import Growing


class TensorBoard:
    """Writes events into the workdir's `tensorboard`.

    The messages are tensorboardX's, their file is ours: its writer leaves them to a thread, and when that dies of a
    full disk the run waits for it for ever.
    """

    def __init__(self, workdir: pathlib.Path, resume_step: int):
        """Opens the file; events after `resume_step`, which will be run again, are hidden."""
        name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}"
        self._file = Growing(workdir / "tensorboard" / name)
        self._add(file_version="brain.Event:2")
        self._add(file_version="brain.Event:2", step=resume_step + 1)

    @staticmethod
    def is_installed() -> bool:
        """Whether there is what makes them."""
        return importlib.util.find_spec("tensorboardX") is not None

    def write(self, step: int, values: dict[str, float]) -> None:
        """Writes the numbers of a step.

        Raises:
          EndxError: when the disk is full.
        """
        from tensorboardX.proto.summary_pb2 import Summary

        self._add(step=step, summary=Summary(value=[Summary.Value(tag=n, simple_value=v) for n, v in values.items()]))

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _add(self, **fields) -> None:
        """Adds an event as TFRecord frames it: length, its checksum, the message, its checksum."""
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.record_writer import masked_crc32c

        message = Event(wall_time=time.time(), **fields).SerializeToString()
        length = struct.pack("<Q", len(message))
        framed = [length, struct.pack("<I", masked_crc32c(length)), message, struct.pack("<I", masked_crc32c(message))]
        self._file.add(b"".join(framed))
