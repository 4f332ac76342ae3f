"""Starts one run as several processes of this machine, each with virtual CPU devices.

  python launch/local.py [--processes=N] [--devices=M] -- --config=CONFIG [--workdir=DIR] [--config.a.b=value ...]

What follows `--` goes to `python -m endx_jax.main` in every process. Lines of process k begin with `[k]`. When one
process fails the others are stopped, and its exit status is returned.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

PATIENCE = 10.0  # seconds that a process has to leave by itself, once told to


def main(argv: Sequence[str]) -> int:
    """Reads the command line and runs; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=_positive, default=2, metavar="N", help="default: 2")
    parser.add_argument("--devices", type=_positive, default=1, metavar="M", help="of each process; default: 1")
    parser.add_argument("arguments", nargs="*", metavar="ARGUMENT", help="for endx_jax.main, after --")
    options = parser.parse_args(argv)
    # A process manager's way to say stop does what Ctrl-C does. Setting both also undoes that a shell has background
    # jobs ignore interrupts, which the processes would inherit.
    for stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop, signal.default_int_handler)
    command = [sys.executable, "-m", "endx_jax.main", *options.arguments]
    return launch(command, processes=options.processes, devices=options.devices)


def launch(command: Sequence[str], *, processes: int, devices: int) -> int:
    """Runs `command` in every process until all have ended well, one has failed, or the user interrupts.

    Returns:
      0; the status of the process that failed, 128 + n if signal n ended it; 130 when interrupted.
    """
    address = f"localhost:{_free_port()}"
    children: list[subprocess.Popen] = []
    readers: list[threading.Thread] = []
    try:
        for index in range(processes):
            environment = os.environ | {
                "JAX_PLATFORMS": "cpu",
                "JAX_NUM_CPU_DEVICES": str(devices),
                "JAX_COORDINATOR_ADDRESS": address,
                "JAX_NUM_PROCESSES": str(processes),
                "JAX_PROCESS_ID": str(index),
                "PYTHONUNBUFFERED": "1",
            }
            # A session of its own: Ctrl-C reaches this process alone, which tells the others once.
            child = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )
            children.append(child)
            readers.append(threading.Thread(target=_relay, args=(child, index), daemon=True))
            readers[-1].start()
        return _first_failure(children)
    except KeyboardInterrupt:
        return 130
    finally:
        _stop(children)
        for reader in readers:
            reader.join(PATIENCE)


def _first_failure(children: Sequence[subprocess.Popen]) -> int:
    """Waits until every process has ended well or one has not; returns the exit status."""
    while True:
        statuses = [child.poll() for child in children]
        failed = next((status for status in statuses if status), None)
        if failed is not None:
            return failed if failed > 0 else 128 - failed
        if None not in statuses:
            return 0
        time.sleep(0.05)


def _stop(children: Sequence[subprocess.Popen]) -> None:
    """Interrupts the processes that still run, and kills those that do not leave in time."""
    running = [child for child in children if child.poll() is None]
    for child in running:
        child.send_signal(signal.SIGINT)
    deadline = time.monotonic() + PATIENCE
    for child in running:
        try:
            child.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _relay(child: subprocess.Popen, index: int) -> None:
    """Copies what a process prints, each line in one piece."""
    with child.stdout as lines:
        for line in lines:
            sys.stdout.write(f"[{index}] {line.rstrip()}\n")
            sys.stdout.flush()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return number


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
