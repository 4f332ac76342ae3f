"""Text of a PDF file, read in a process with limits, since small files can take hours or exhaust the memory.

Run as a script, this file is that process. It imports nothing of this package.
"""

import contextlib
import importlib.util
import json
import os
import subprocess
import sys

# Limits of a file: seconds of CPU time, which do not depend on the machine's load, and bytes. Text takes 3 s per MB.
SECONDS, SECONDS_PER_MB, MOST_MEMORY = 10, 5, 1_500_000_000


def read_pdf(file: str) -> str:
    """Returns the text of a PDF file; raises ImportError without pypdf, TimeoutError at a limit, else ValueError."""
    if importlib.util.find_spec("pypdf") is None:
        raise ImportError("pypdf")
    seconds = SECONDS + SECONDS_PER_MB * os.path.getsize(file) / 1e6
    # With -P, the modules beside this file do not replace those that pypdf imports. pypdf's warnings are discarded.
    command = [sys.executable, "-P", __file__, file, str(seconds), str(MOST_MEMORY)]
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    if ended.returncode:
        raise TimeoutError
    return json.loads(ended.stdout)


def _main(file: str, seconds: str, memory: str) -> None:
    """Prints the text as JSON, or nothing if pypdf fails. At a limit the process ends with a status other than 0."""
    if os.name == "posix":
        import resource
        import signal

        signal.setitimer(signal.ITIMER_PROF, float(seconds))
        with contextlib.suppress(ValueError, OSError):  # there is a lower limit, or the system has none
            resource.setrlimit(resource.RLIMIT_AS, (int(memory), int(memory)))
    import pypdf

    try:
        text = "\n\n".join(page.extract_text() for page in pypdf.PdfReader(file).pages)
        print(json.dumps(text.encode("utf-8", "replace").decode()))
    except MemoryError:
        raise
    except Exception:  # pypdf raises errors of many types
        pass


if __name__ == "__main__":
    _main(*sys.argv[1:])
