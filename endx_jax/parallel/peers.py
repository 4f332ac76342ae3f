"""What one process knows of the others from their heartbeats: who is silent, who has ended, who is slow."""

import dataclasses
import json
import math
import pathlib
from collections.abc import Iterable, Iterator
from typing import Literal

from endx_jax.errors import TRY_AGAIN, EndxError, RunInterrupted

# What a run does. In a step processes wait for each other; one that left did so because another was gone.
Phase = Literal[
    "starting", "compiling", "reading", "step", "validating", "saving", "evaluating", "done", "failed", "left"
]

SLOW = 0.25  # share of the time-out after which a process is warned of


@dataclasses.dataclass(frozen=True)
class Beat:
    """One heartbeat.

    Attributes:
      process: its number.
      host: where it runs.
      pid: of the process, there.
      step: the last that it has taken.
      phase: what it does.
      phase_seconds: for how long it has been doing that.
      time: seconds since 1970 by its host's clock, for people; no two hosts' clocks are compared.
      status: its exit status, once it ends.
      message: why it ends, where not because it is done.
    """

    process: int
    host: str
    pid: int
    step: int
    phase: Phase
    phase_seconds: float
    time: float
    status: int | None = None
    message: str = ""

    def __str__(self) -> str:
        return f"process {self.process} on {self.host} (pid {self.pid})"

    @property
    def text(self) -> str:
        """As it is in its file."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def parse(cls, text: str) -> "Beat | None":
        """The inverse of `text`; None for what is no heartbeat."""
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError):
            return None


def beat_file(folder: pathlib.Path, process: int) -> pathlib.Path:
    """Where a process leaves its heartbeats."""
    return folder / f"{process}.json"


class Peers:
    """Remembers when each other process was last heard of, by this process's own clock."""

    def __init__(
        self,
        folder: pathlib.Path,
        processes: Iterable[int],
        *,
        timeout: float,
        pause: float = math.inf,
        known: bool = False,
    ):
        """Nobody has been heard of.

        Args:
          folder: of the heartbeats.
          processes: the numbers of those to listen to.
          timeout: seconds after which a silent process counts as gone.
          pause: seconds between two looks after which this process must have been held up itself.
          known: whether what is there at the first look is from this run; else it may be left from an earlier one.
        """
        self._folder, self._processes, self._timeout, self._pause = folder, list(processes), timeout, pause
        self._heard: dict[int, tuple[str, float]] = {}  # the text that changed last, and when
        self._alive = set(self._processes) if known else set()
        self._looked: float | None = None
        self._warned: dict[int, object] = {}

    def look(self, now: float) -> None:
        """Reads what is there; `now` is in seconds of a clock that only goes forward."""
        if self._looked is not None and now - self._looked > self._pause:
            self.forgive(now)
        self._looked = now
        for process in self._processes:
            try:
                text = beat_file(self._folder, process).read_text()
            except OSError:
                text = ""
            if process not in self._heard:
                self._heard[process] = text, now
            elif text and text != self._heard[process][0]:
                self._heard[process] = text, now
                self._alive.add(process)

    def forgive(self, now: float) -> None:
        """Takes everybody as heard of now: it was this process that could not listen."""
        self._heard = {process: (text, now) for process, (text, _) in self._heard.items()}

    def silent(self, now: float) -> RunInterrupted | None:
        """What to end with where processes are gone."""
        lines = [
            self._silence(process, now)
            for process, beat in self._beats()
            if now - self._heard[process][1] > self._timeout and not (beat and beat.phase == "done")
        ]
        return (
            RunInterrupted(f"{'; '.join(lines)}; the same command goes on from the last checkpoint") if lines else None
        )

    def ended(self, now: float, *, grace: float = 0.0) -> Exception | None:
        """What to end with where a process has ended before the run did: its own words.

        Args:
          now: as for `look`.
          grace: seconds that this process is given to end by itself, for the same reason.
        """
        for process, beat in self._beats():
            if not (beat and beat.status and process in self._alive):
                continue
            kind = RunInterrupted if beat.status == TRY_AGAIN else EndxError
            if beat.phase == "left":
                return kind(beat.message)
            if now - self._heard[process][1] >= grace:
                return kind(f"{beat} has ended: {beat.message}")
        return None

    def warnings(self, now: float, mine: Beat) -> Iterator[str]:
        """A line for each process that is slow, once as long as nothing changes.

        Args:
          now: as for `look`.
          mine: this process's own heartbeat.
        """
        for process, topic, line in [*self._silent_ones(now), *self._late_ones(now, mine)]:
            if self._warned.get(process) != topic:
                self._warned[process] = topic
                yield line

    def _silent_ones(self, now: float) -> Iterator[tuple[int, object, str]]:
        """Number, what to warn of once, and the line."""
        for process, (text, since) in self._heard.items():
            if now - since > SLOW * self._timeout:
                yield process, text, self._silence(process, now)

    def _late_ones(self, now: float, mine: Beat) -> Iterator[tuple[int, object, str]]:
        """Likewise, of those that others wait for in a step."""
        long = SLOW * self._timeout
        others = [beat for process, beat in self._beats() if beat and now - self._heard[process][1] <= long]
        if any(beat.phase == "step" and beat.phase_seconds > long for beat in [mine, *others]):
            for beat in [mine, *others]:
                if beat.phase != "step" and beat.phase_seconds > long and beat.status is None:
                    line = f"{beat} has been {beat.phase} for {beat.phase_seconds:.0f} s; the others wait for it"
                    yield beat.process, (beat.phase, beat.step), line

    def _beats(self) -> Iterator[tuple[int, Beat | None]]:
        for process, (text, _) in self._heard.items():
            yield process, Beat.parse(text)

    def _silence(self, process: int, now: float) -> str:
        text, since = self._heard[process]
        beat = Beat.parse(text)
        if beat is None or process not in self._alive:
            return f"process {process} has not been heard of for {now - since:.0f} s"
        return f"{beat} has been silent for {now - since:.0f} s, since step {beat.step} ({beat.phase})"
