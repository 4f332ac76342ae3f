import asyncio

import pytest

from endx_jax.serving.dispatch import FEWEST_CHARACTERS, MOST_CHARACTERS, cost, pieces, while_connected
from endx_jax.serving.errors import ClientGone


def test_pieces_cost_no_more_than_a_batch_unless_they_are_one_text():
    texts = ["x" * n for n in (3000, 1096, 1, 9000, 5, 5)]
    cut = pieces(texts)
    assert [[len(text) for text in piece] for piece in cut] == [[3000, 1096], [1], [9000], [5, 5]]
    assert all(cost(piece) <= MOST_CHARACTERS or len(piece) == 1 for piece in cut)


def test_short_texts_count_as_more_than_they_are():
    assert cost(["", "ab"]) == 2 * FEWEST_CHARACTERS
    assert len(pieces([""] * 1000)) == -(-1000 // (MOST_CHARACTERS // FEWEST_CHARACTERS))


def client(*messages):
    """A `receive` that gives these messages, and then waits."""
    coming = list(messages)

    async def receive():
        await asyncio.sleep(0)
        return {"type": coming.pop(0)} if coming else await asyncio.get_running_loop().create_future()

    return receive


def test_an_answer_is_given_up_when_the_client_hangs_up():
    async def test():
        answer = asyncio.get_running_loop().create_future()
        with pytest.raises(ClientGone):
            await while_connected(client("http.request", "http.disconnect"), answer)
        assert answer.cancelled()

    asyncio.run(test())


def test_to_be_cancelled_from_outside_is_something_else():
    async def test():
        answer = asyncio.get_running_loop().create_future()
        waiting = asyncio.ensure_future(while_connected(client(), answer))
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(test())


def test_an_answer_comes_through():
    async def test():
        answer = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(0.01, answer.set_result, 5)
        assert await while_connected(client(), answer) == 5

    asyncio.run(test())
