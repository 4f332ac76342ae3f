import subprocess
import sys

PROGRAM = """
import ctypes, threading
from endx_jax.parallel.abort import on_abort
on_abort(lambda: "process 0 is gone")
thread = threading.Thread(target=ctypes.CDLL(None).abort)  # outside of the interpreter's lock, like JAX's threads
thread.start()
thread.join()
"""


def test_an_abort_ends_with_one_line_and_a_status_to_go_on_by():
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (75, "endx: process 0 is gone\n")
