"""Memory that is kept between steps, on a CPU."""

import glob
import os
import sys

# glibc hands large buffers back to the system when they are freed, and gets them anew, page by page, at the next step:
# a quarter of a training step's time on two cores, and more beside other programs (docs/performance.md). So: large
# pages, and nothing handed back. It reads this only as a program starts.
TUNABLES = ":".join(
    f"glibc.malloc.{name}={value}"
    for name, value in {"hugetlb": 1, "mmap_max": 0, "trim_threshold": 1 << 40, "arena_max": 1}.items()
)
ACCELERATORS = ("/dev/nvidia[0-9]*", "/dev/accel*", "/dev/vfio/[0-9]*")


def keep_memory() -> None:
    """Starts this program again, in its own process, so that glibc keeps its memory.

    Not where `GLIBC_TUNABLES` is set already, to whatever, nor where an accelerator does the work.
    """
    if sys.platform != "linux" or "GLIBC_TUNABLES" in os.environ or any(map(glob.glob, ACCELERATORS)):
        return
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | {"GLIBC_TUNABLES": TUNABLES})
