"""Large memory pages for training steps on a CPU."""

import glob
import os
import sys

# XLA allocates the buffers of each step anew, and the system maps them page by page. With large pages this takes a
# tenth of the time (docs/performance.md). glibc reads this variable at program start only.
TUNABLES = "glibc.malloc.hugetlb=1"
ACCELERATORS = ("/dev/nvidia[0-9]*", "/dev/accel*", "/dev/vfio/[0-9]*")


def use_large_pages() -> None:
    """Restarts this program in its own process, so that glibc allocates large pages.

    Does nothing if `GLIBC_TUNABLES` is already set or there is an accelerator.
    """
    if sys.platform != "linux" or "GLIBC_TUNABLES" in os.environ or any(map(glob.glob, ACCELERATORS)):
        return
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | {"GLIBC_TUNABLES": TUNABLES})
