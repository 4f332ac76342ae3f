"""Runs a verb of endx in several processes on this machine, each with virtual CPU devices.

  python launch/local.py [--processes=N] [--devices=M] [--restarts=R] -- [VERB] ARGUMENT...

Arguments after `--` are passed to `endx` in every process; the default verb is `train`:

  python launch/local.py --processes=2 -- --config=quickstart --workdir=runs/two
  python launch/local.py --processes=2 -- evaluate --workdir=runs/two

Output lines of process k begin with `[k]`. If a process fails, the others end by themselves within ten seconds or are
killed, and its exit status is returned.
"""

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence

PATIENCE = 10.0  # seconds for a process to exit after another one has failed
GRACE = 120.0  # seconds for the processes to save after SIGTERM or Ctrl-C

TRY_AGAIN = 75  # exit status of endx if the same command resumes
# Statuses after which the run is restarted: 75, and signals (aborted, bus error, killed, segmentation fault,
# terminated), as JAX aborts a process whose peer died. User errors (2) and bugs (1) are not retried.
AGAIN = (TRY_AGAIN, 134, 135, 137, 139, 143)


def main(argv: Sequence[str]) -> int:
    """Runs the command line and returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=_whole(1), default=2, metavar="N", help="default: 2")
    parser.add_argument("--devices", type=_whole(1), default=1, metavar="M", help="devices per process; default: 1")
    parser.add_argument(
        "--restarts", type=_whole(0), default=0, metavar="R", help="restarts after status 75 or a kill; default: 0"
    )
    parser.add_argument("arguments", nargs="*", metavar="ARGUMENT", help="arguments of endx, after --")
    options = parser.parse_args(argv)
    told = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: told.set())
    # A shell makes background jobs ignore interrupts, and the processes would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    verb = [] if options.arguments and not options.arguments[0].startswith("-") else ["train"]
    command = [sys.executable, "-m", "endx_jax", *verb, *options.arguments]
    restart = 0
    while True:
        status = launch(command, processes=options.processes, devices=options.devices, told=told)
        if status not in AGAIN or told.is_set() or restart == options.restarts:
            return status
        restart += 1
        print(f"launch/local.py: status {status}; restart {restart} of {options.restarts}", flush=True)


def launch(command: Sequence[str], *, processes: int, devices: int, told: threading.Event) -> int:
    """Runs `command` in every process until all succeed, one fails, or the user interrupts.

    Args:
      command: the program and its arguments.
      processes: number of processes.
      devices: number of virtual devices in each process.
      told: event that is set when the processes should save and stop (SIGTERM).

    Returns:
      0; the status of the process that failed, 128 + n if signal n killed it; 75 after SIGTERM; 130 after an interrupt.
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
            }
            # A new session, so that Ctrl-C reaches this process only, which then interrupts the others once.
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
        return _outcome(children, told)
    except KeyboardInterrupt:
        for _ in range(2):  # a second one ends the processes without saving
            with contextlib.suppress(KeyboardInterrupt):
                for child in children:
                    child.send_signal(signal.SIGINT)  # no effect on processes that have ended
                _end(children, GRACE)
                break
        return 130
    finally:
        _end(children, PATIENCE)
        for reader in readers:
            reader.join(PATIENCE)


def _outcome(children: Sequence[subprocess.Popen], told: threading.Event) -> int:
    """Waits until every process has ended or one has failed; returns the exit status of the run."""
    deadline, passed_on = float("inf"), False
    reported: set[int] = set()
    while True:
        if told.is_set() and not passed_on:
            for child in children:
                child.send_signal(signal.SIGTERM)  # no effect on processes that have ended
            deadline, passed_on = time.monotonic() + GRACE, True
        statuses, late = [child.poll() for child in children], time.monotonic() > deadline
        _report_kills(statuses, reported)
        if late:  # those that still run will be killed, and resume as if they had saved
            statuses = [TRY_AGAIN if status is None else status for status in statuses]
        failures = [status if status > 0 else 128 - status for status in statuses if status]
        # A user error in one process takes precedence over 134: JAX aborts the other processes after it.
        failure = min(failures, key=lambda status: (status in AGAIN, status == TRY_AGAIN), default=0)
        if None not in statuses:
            return TRY_AGAIN if passed_on and failure in AGAIN else failure
        if failure and not passed_on:
            if failure != TRY_AGAIN:
                return failure
            # This process got SIGTERM and has saved its part; others may still be writing.
            deadline = min(deadline, time.monotonic() + GRACE)
        time.sleep(0.05)


def _report_kills(statuses: Sequence[int | None], reported: set[int]) -> None:
    """Prints which processes were killed by a signal, as they cannot do so."""
    for index, status in enumerate(statuses):
        if status is not None and status < 0 and index not in reported:
            print(f"launch/local.py: process {index} was killed ({signal.Signals(-status).name})", flush=True)
            reported.add(index)


def _end(children: Sequence[subprocess.Popen], patience: float) -> None:
    """Waits for the processes that still run, and kills those that do not exit in time."""
    deadline = time.monotonic() + patience
    for child in children:
        try:
            child.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _relay(child: subprocess.Popen, index: int) -> None:
    """Copies a process's output line by line."""
    with child.stdout as lines:
        for line in lines:
            if not line.startswith("[Gloo]"):  # Gloo prints that it is connected
                sys.stdout.write(f"[{index}] {line.rstrip()}\n")
                sys.stdout.flush()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


def _whole(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text} is not a whole number of at least {least}")
        return int(text)

    return number


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
