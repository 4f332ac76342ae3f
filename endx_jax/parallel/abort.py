"""A last word where C++ aborts this process: JAX does so when process 0 is gone, after a stack of its own."""

import ctypes
import os
import signal
from collections.abc import Callable

from endx_jax.errors import TRY_AGAIN

_explain: Callable[[], str] = str


def on_abort(explain: Callable[[], str]) -> None:
    """Has this process end with one line and status 75 where it would have ended with a signal.

    Python's own handlers run too late for this one: `abort` does not come back. So the C library is given one of ours,
    which runs on the thread that aborts. Other threads go on meanwhile.

    Args:
      explain: gives the line; it may take its time. The last one given counts.
    """
    global _explain
    _explain = explain
    libc = ctypes.CDLL(None)
    libc.signal.argtypes, libc.signal.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
    libc.signal(signal.SIGABRT, ctypes.cast(_end, ctypes.c_void_p))


@ctypes.CFUNCTYPE(None, ctypes.c_int)
def _end(number: int) -> None:
    try:
        os.write(2, f"endx: {_explain()}\n".encode())
    finally:
        os._exit(TRY_AGAIN)
