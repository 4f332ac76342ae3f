"""Requests on their way to the compute thread and back."""

import asyncio
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from starlette.types import Receive

from endx_jax.retrieval.warm import Encoded
from endx_jax.serving.batching import Batcher
from endx_jax.serving.errors import ClientGone
from endx_jax.serving.works import Encode

T = TypeVar("T")

# Characters of text in a batch, and in a piece of a request with many texts: a tenth of a second's work on two cores.
MOST_CHARACTERS = 4096
# What a text counts at least: a call has its price.
FEWEST_CHARACTERS = 64


async def while_connected(receive: Receive, answer: "asyncio.Future[T]") -> T:
    """Waits for an answer, and gives it up when the client hangs up; the request's body must have been read.

    Raises:
      ClientGone: it did.
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


async def encode(batcher: Batcher, receive: Receive, side: str, texts: Sequence[str]) -> Encoded:
    """Encodes any number of texts, a piece at a time, so that other clients' questions come in between."""
    found = []
    for piece in pieces(texts):
        found.append(await while_connected(receive, batcher.submit(Encode(side, piece), cost(piece))))
    return Encoded(*map(np.concatenate, zip(*found, strict=True)))


def pieces(texts: Sequence[str]) -> list[Sequence[str]]:
    """The texts, cut into runs that cost no more than a batch should."""
    found, start, spent = [], 0, 0
    for stop, text in enumerate(texts):
        own = cost([text])
        if stop > start and spent + own > MOST_CHARACTERS:
            found.append(texts[start:stop])
            start, spent = stop, 0
        spent += own
    return [*found, texts[start:]]


def cost(texts: Sequence[str]) -> int:
    """What encoding texts costs, in characters."""
    return sum(max(len(text), FEWEST_CHARACTERS) for text in texts)
