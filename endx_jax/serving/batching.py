"""Dynamic batching of concurrent requests on one compute thread."""

import asyncio
import contextlib
import dataclasses
import functools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

from starlette.types import Receive

from endx_jax.serving.errors import ClientGone, Refusal

Job = TypeVar("Job")
Result = TypeVar("Result")

LATER = {"Retry-After": "1"}


@dataclasses.dataclass(frozen=True, eq=False)
class _Waiting(Generic[Job, Result]):
    job: Job
    cost: int
    answer: "asyncio.Future[Result]"


class Batcher(Generic[Job, Result]):
    """Passes waiting jobs to one thread as a batch whenever the thread is free.

    There is no timer. A job that arrives while the thread is free starts at once; jobs that arrive meanwhile form the
    next batch. So a single client never waits, and batches grow with the number of clients. Pieces of requests with
    many texts wait in a queue of their own, and the two queues alternate, so that neither waits for
    more than one batch of the other.

    All methods are called in the event loop.

    Attributes:
      requests: number of requests that wait or are computed.
      ready: true once the preparations are done that requests wait for.
    """

    def __init__(
        self,
        run: Callable[[Sequence[Job]], Sequence[Result | Exception]],
        *,
        most_cost: int,
        most_requests: int,
        seen: Callable[[Sequence[Job]], None] = lambda jobs: None,
    ):
        """Stores the arguments; nothing runs yet.

        Args:
          run: computes a batch, in the thread; a result that is an exception is raised to the job's own client.
          most_cost: largest cost of a batch of several jobs.
          most_requests: largest number of requests at a time.
          seen: called with each batch before it runs.
        """
        self._run, self._most_cost, self._most_requests, self._seen = run, most_cost, most_requests, seen
        self._waiting: dict[bool, deque[_Waiting[Job, Result]]] = {False: deque(), True: deque()}  # by `bulk`
        self._bulk_is_next = False
        self._batch: list[_Waiting[Job, Result]] = []  # the batch that the thread computes
        self._thread, self._behind = ThreadPoolExecutor(1, "compute"), ThreadPoolExecutor(1, "prepare")
        self.requests = 0
        self.ready = False
        self._stopping: Refusal | None = None

    @contextlib.contextmanager
    def request(self) -> Iterator[None]:
        """Counts one request, which may submit several jobs, while the block runs.

        Raises:
          Refusal: with 429 if there are too many requests; with 503 before it is ready, or after `stop`.
        """
        if self._stopping:
            raise self._stopping
        if not self.ready:
            raise Refusal(503, "the server is warming up: try again in a second", code="not_ready", headers=LATER)
        if self.requests >= self._most_requests:
            message = f"{self.requests} requests are waiting already: try again in a second"
            raise Refusal(429, message, code="queue_full", headers=LATER)
        self.requests += 1
        try:
            yield
        finally:
            self.requests -= 1

    def submit(self, job: Job, cost: int, *, bulk: bool = False) -> "asyncio.Future[Result]":
        """Queues a job, with `bulk` among the pieces of large requests. Cancelling its future skips it."""
        waiting = _Waiting[Job, Result](job, cost, asyncio.get_running_loop().create_future())
        if self._stopping:
            waiting.answer.set_exception(self._stopping)
            return waiting.answer
        self._waiting[bulk].append(waiting)
        if not self._batch:
            self._start()
        return waiting.answer

    async def prepare(self, steps: Iterable[Callable[[], object]]) -> None:
        """Runs preparations in a separate thread until `stop`; requests are refused until the first call returns."""
        for step in steps:
            if not self._stopping:
                await asyncio.get_running_loop().run_in_executor(self._behind, step)
        self.ready = True

    def stop(self) -> None:
        """Refuses all requests with 503, those too that wait or are computed."""
        message = "the server is stopping: try again in a second"
        self._stopping = Refusal(503, message, code="stopping", headers=LATER)
        for waiting in (*self._batch, *self._waiting[False], *self._waiting[True]):
            if not waiting.answer.done():
                waiting.answer.set_exception(self._stopping)

    def close(self) -> None:
        """Stops the threads after the current batch and step, without waiting for them."""
        for thread in (self._thread, self._behind):
            thread.shutdown(wait=False, cancel_futures=True)

    def _start(self) -> None:
        """Starts the next batch, if any job waits."""
        self._batch = self._next_batch()
        if self._batch:
            jobs = [waiting.job for waiting in self._batch]
            self._seen(jobs)
            running = asyncio.get_running_loop().run_in_executor(self._thread, self._run, jobs)
            running.add_done_callback(functools.partial(self._finish, self._batch))

    def _next_batch(self) -> list[_Waiting[Job, Result]]:
        """Returns jobs of one queue: of the one that did not have the last batch, if any job waits there."""
        batch: list[_Waiting[Job, Result]] = []
        cost = 0
        for bulk in (self._bulk_is_next, not self._bulk_is_next):
            queue = self._waiting[bulk]
            while queue and (not batch or cost + queue[0].cost <= self._most_cost):
                waiting = queue.popleft()
                if not waiting.answer.done():  # otherwise its client has disconnected
                    batch.append(waiting)
                    cost += waiting.cost
            if batch:
                self._bulk_is_next = not bulk
                break
        return batch

    def _finish(
        self, batch: Sequence[_Waiting[Job, Result]], done: "asyncio.Future[Sequence[Result | Exception]]"
    ) -> None:
        """Starts the next batch, so that the thread is not idle, and then delivers the results of this one."""
        if done.cancelled():  # the server was stopped
            return
        self._start()
        failure = done.exception()
        answers = [failure] * len(batch) if failure else done.result()
        for waiting, answer in zip(batch, answers, strict=True):
            if waiting.answer.done():
                continue
            if isinstance(answer, BaseException):
                waiting.answer.set_exception(answer)
            else:
                waiting.answer.set_result(answer)


T = TypeVar("T")

# Largest number of characters in a batch, and in a piece of a request with many texts: 0.1 s of work on two cores.
MOST_CHARACTERS = 4096
# Smallest cost of a text, for the overhead of a call.
FEWEST_CHARACTERS = 64


async def while_connected(receive: Receive, answer: "asyncio.Future[T]") -> T:
    """Waits for an answer and cancels it if the client disconnects; must be called after reading the request's body.

    Raises:
      ClientGone: the client disconnected.
    """
    watch = asyncio.ensure_future(_hang_up(receive))
    watch.add_done_callback(lambda _: answer.cancel())
    try:
        return await answer
    except asyncio.CancelledError:
        if watch.done() and not watch.cancelled():
            raise ClientGone from None
        raise
    finally:
        watch.cancel()


async def _hang_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def in_pieces(
    batcher: Batcher[Job, Result], receive: Receive, job: Callable[[Sequence[str]], Job], texts: Sequence[str]
) -> list[Result]:
    """Runs the job of each piece of the texts, so that other clients' questions are computed in between."""
    submit = functools.partial(batcher.submit, bulk=len(texts) > 1)
    return [await while_connected(receive, submit(job(piece), cost(piece))) for piece in pieces(texts)]


def pieces(texts: Sequence[str]) -> list[Sequence[str]]:
    """Splits texts into runs that cost at most `MOST_CHARACTERS` each, or consist of one text."""
    runs, start, spent = [], 0, 0
    for stop, text in enumerate(texts):
        text_cost = cost([text])
        if stop > start and spent + text_cost > MOST_CHARACTERS:
            runs.append(texts[start:stop])
            start, spent = stop, 0
        spent += text_cost
    return [*runs, texts[start:]]


def cost(texts: Sequence[str]) -> int:
    """Returns the cost of encoding texts, in characters."""
    return sum(max(len(text), FEWEST_CHARACTERS) for text in texts)
