"""Heartbeats: what each process of a run is doing, in a small file of the workdir, and the watch over the others.

Collectives wait for the slowest process, and for ever for one that is gone. So a thread in every process writes
`heartbeats/K.json` every few seconds; process 0 watches all the others, and they watch process 0. A run whose process
is silent for too long ends on all of them, each with one line that names the process.
"""

import os
import pathlib
import socket
import sys
import threading
import time

import jax

from endx_jax.errors import TRY_AGAIN, EndxError, RunInterrupted
from endx_jax.files import write_text
from endx_jax.parallel.abort import on_abort
from endx_jax.parallel.distributed import leave
from endx_jax.parallel.peers import Beat, Peers, Phase, beat_file

FOLDER = "heartbeats"
EVERY = 2.0  # seconds between beats
NAMING = 4  # beats without which a process is taken to be gone when JAX says that one is
GRACE = 2  # beats after the end of another process in which this one may end by itself, for the same reason


class Heartbeats:
    """Beats while it is entered, and ends the run when another process is gone."""

    def __init__(self, workdir: pathlib.Path, *, peer_timeout: float, every: float = EVERY):
        """Sets up; nothing is written before it is entered.

        Args:
          workdir: of the run, on a file system that all processes see.
          peer_timeout: seconds of silence after which a process counts as gone; 0: never.
          every: seconds between beats.
        """
        self._folder, self._timeout, self._every = workdir / FOLDER, peer_timeout, every
        self._me, self._count = jax.process_index(), jax.process_count()
        self._host, self._pid, self.step = socket.gethostname(), os.getpid(), 0
        self._began = self._phase_began = time.monotonic()
        self._phase: Phase = "starting"
        self._ending, self._explaining = threading.Event(), threading.Lock()
        # One that all listen to and that listens to all: few files are read, and everyone learns what it learns.
        watched = range(1, self._count) if self._me == 0 else [0]
        self._peers = Peers(self._folder, watched, timeout=peer_timeout, pause=10 * every)
        self._thread = threading.Thread(target=self._run, name="heartbeats", daemon=True)

    @property
    def phase(self) -> Phase:
        """What this process does now."""
        return self._phase

    @phase.setter
    def phase(self, phase: Phase) -> None:
        self._phase, self._phase_began = phase, time.monotonic()

    @property
    def seconds(self) -> float:
        """Since this was made: the wall time of the run, as far as this process knows."""
        return time.monotonic() - self._began

    def __enter__(self) -> "Heartbeats":
        self._write()
        self._thread.start()
        if self._count > 1:
            on_abort(lambda: str(self.explain() or "JAX has aborted this process; its own words are above"))
        return self

    def __exit__(self, kind, failure, traceback) -> None:
        """Leaves a last word in the file.

        Raises:
          RunInterrupted: in the place of an error of JAX's, when another process is gone.
          EndxError: likewise, when that process has ended with a mistake of the user's.
        """
        explained = None
        if isinstance(failure, Exception) and not isinstance(failure, EndxError | RunInterrupted):
            explained = self.explain()
        self._ending.set()
        self._thread.join()
        self._end(explained or failure, "left" if explained else "failed" if failure else "done")
        if explained:
            raise explained from None

    def explain(self) -> Exception | None:
        """Finds the process that is gone, after an error of JAX's that may come from it; takes some seconds.

        Where two threads ask, since JAX aborts on one while another fails, the second waits for the end of the process.

        Returns:
          What to end with; None when all the others are well.
        """
        others = [process for process in range(self._count) if process != self._me]
        if not others:
            return None
        self._explaining.acquire()
        patience = NAMING * self._every
        peers = Peers(self._folder, others, timeout=patience, known=True)
        deadline = time.monotonic() + 2 * patience
        while (now := time.monotonic()) < deadline:
            peers.look(now)
            if found := peers.ended(now) or peers.silent(now):
                return found
            time.sleep(self._every / 4)
        self._explaining.release()
        return None

    def _run(self) -> None:
        """What the thread does."""
        while not self._ending.wait(self._every):
            if not self._write():
                # Others may be unable to write as well, to a file system that is full or away. That is no silence.
                self._peers.forgive(time.monotonic())
            elif self._count > 1 and self._timeout:
                self._watch(time.monotonic())

    def _watch(self, now: float) -> None:
        """Warns of slow processes; ends this one where another is gone, as its main thread may wait for ever."""
        self._peers.look(now)
        failure = self._peers.ended(now, grace=GRACE * self._every) or self._peers.silent(now)
        if failure:
            os.write(2, f"endx: {failure}\n".encode())
            leave(self._end(failure, "left"))
        for line in self._peers.warnings(now, self._beat()) if self._me == 0 else ():
            print(f"warning: {line}", file=sys.stderr, flush=True)

    def _end(self, failure: BaseException | None, phase: Phase) -> int:
        """Writes the last beat; returns the exit status in it."""
        self.phase = phase
        if failure is None:
            status = 0
        else:
            status = TRY_AGAIN if isinstance(failure, RunInterrupted | KeyboardInterrupt) else 2
        self._write(status=status, message="" if failure is None else str(failure) or type(failure).__name__)
        return status

    def _beat(self, **ending) -> Beat:
        seconds = round(time.monotonic() - self._phase_began, 1)
        return Beat(self._me, self._host, self._pid, self.step, self._phase, seconds, time.time(), **ending)

    def _write(self, **ending) -> bool:
        """Writes a beat; returns whether that went well. A run does not end because it can't say that it lives."""
        try:
            write_text(beat_file(self._folder, self._me), self._beat(**ending).text)
        except (OSError, EndxError):
            return False
        return True
