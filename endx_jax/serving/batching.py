"""What several clients ask at about the same time is worked out together, in one thread, in the order it came."""

import asyncio
import contextlib
import dataclasses
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

from endx_jax.serving.errors import Refusal

Work = TypeVar("Work")
Result = TypeVar("Result")

LATER = {"Retry-After": "1"}


@dataclasses.dataclass(frozen=True, eq=False)
class _Job(Generic[Work, Result]):
    work: Work
    cost: int
    answer: "asyncio.Future[Result]"


class Batcher(Generic[Work, Result]):
    """Hands what waits to one thread, as a batch, whenever that is free.

    There is no timer. A request that comes while nothing is worked on is begun at once; those that come meanwhile wait
    for it and are the next batch. So one client never waits for others, and the more there are, the larger are batches.

    All methods are called in the event loop.

    Attributes:
      requests: how many there are: they wait, or are worked on.
      ready: whether all is prepared.
    """

    def __init__(
        self,
        run: Callable[[Sequence[Work]], Sequence[Result | Exception]],
        *,
        most_cost: int,
        most_requests: int,
        seen: Callable[[Sequence[Work]], None] = lambda works: None,
    ):
        """Starts nothing yet.

        Args:
          run: works out a batch, in the thread; an answer that is an exception is raised to whom it belongs.
          most_cost: of a batch, but for one that is a single job.
          most_requests: that there may be at a time.
          seen: is shown each batch.
        """
        self._run, self._most_cost, self._most_requests, self._seen = run, most_cost, most_requests, seen
        self._waiting: deque[_Job[Work, Result]] = deque()
        self._busy = False
        self._thread = ThreadPoolExecutor(1, "compute")
        self.requests = 0
        self.ready = False

    @contextlib.contextmanager
    def request(self) -> Iterator[None]:
        """A place for one request, which may submit several jobs.

        Raises:
          Refusal: with 429, where there is none; with 503 before all is prepared.
        """
        if not self.ready:
            raise Refusal(503, "the server is getting ready: come again in a second", code="not_ready", headers=LATER)
        if self.requests >= self._most_requests:
            message = f"{self.requests} requests are waiting already: come again in a second"
            raise Refusal(429, message, code="queue_full", headers=LATER)
        self.requests += 1
        try:
            yield
        finally:
            self.requests -= 1

    def submit(self, work: Work, cost: int) -> "asyncio.Future[Result]":
        """Queues a job; one whose future is cancelled before its turn is never worked on."""
        job = _Job[Work, Result](work, cost, asyncio.get_running_loop().create_future())
        self._waiting.append(job)
        if not self._busy:
            self._start()
        return job.answer

    async def prepare(self, steps: Iterable[Callable[[], object]]) -> None:
        """Runs in the thread what has to be done before the first request; those that come earlier are refused."""
        for step in steps:
            await asyncio.get_running_loop().run_in_executor(self._thread, step)
        self.ready = True

    def close(self) -> None:
        """Lets the thread finish what it has begun, and end."""
        self._thread.shutdown(cancel_futures=True)

    def _start(self) -> None:
        """Begins the next batch, where anything waits."""
        batch = self._next_batch()
        self._busy = bool(batch)
        if batch:
            works = [job.work for job in batch]
            self._seen(works)
            running = asyncio.get_running_loop().run_in_executor(self._thread, self._run, works)
            running.add_done_callback(lambda done: self._finish(batch, done))

    def _next_batch(self) -> list[_Job[Work, Result]]:
        batch: list[_Job[Work, Result]] = []
        cost = 0
        while self._waiting and (not batch or cost + self._waiting[0].cost <= self._most_cost):
            job = self._waiting.popleft()
            if not job.answer.done():  # else its client is gone
                batch.append(job)
                cost += job.cost
        return batch

    def _finish(
        self, batch: Sequence[_Job[Work, Result]], done: "asyncio.Future[Sequence[Result | Exception]]"
    ) -> None:
        """Begins the next batch, so that the thread is not left idle, and then hands out the answers of this one."""
        if done.cancelled():  # the server has stopped
            return
        self._start()
        failure = done.exception()
        answers = [failure] * len(batch) if failure else done.result()
        for job, answer in zip(batch, answers, strict=True):
            if job.answer.done():
                continue
            if isinstance(answer, BaseException):
                job.answer.set_exception(answer)
            else:
                job.answer.set_result(answer)
