import asyncio
import threading

import pytest

from endx_jax.serving import batching
from endx_jax.serving.batching import Batcher, cost, in_pieces, pieces, while_connected


class Runs:
    """Doubles numbers when it is let; strings are errors of the client's."""

    def __init__(self):
        self.batches, self.gate = [], threading.Event()

    def __call__(self, works):
        self.batches.append(list(works))
        assert self.gate.wait(10)
        return [ValueError(work) if isinstance(work, str) else 2 * work for work in works]


@pytest.fixture
def runs():
    return Runs()


def in_loop(test):
    """Makes a test of an `async` one, which gets a batcher that is ready."""

    def run(runs):
        async def with_batcher():
            batcher = Batcher(runs, most_cost=100, most_requests=100)
            await batcher.prepare([])
            try:
                await asyncio.wait_for(test(runs, batcher), 10)
            finally:
                runs.gate.set()
                batcher.close()

        asyncio.run(with_batcher())

    return run


async def silent():
    """A client that sends nothing."""
    await asyncio.get_running_loop().create_future()


async def begun(runs, batches=1):
    while len(runs.batches) < batches:
        await asyncio.sleep(0.001)


@in_loop
async def test_the_first_is_begun_at_once_and_those_that_come_meanwhile_are_the_next_batch(runs, batcher):
    answers = [batcher.submit(work, 1) for work in (1, 2, 3)]
    await begun(runs)
    assert runs.batches == [[1]]
    answers += [batcher.submit(4, 1)]
    runs.gate.set()
    assert await asyncio.gather(*answers) == [2, 4, 6, 8]
    assert runs.batches == [[1], [2, 3, 4]]


@in_loop
async def test_a_batch_costs_no_more_than_it_may_unless_it_is_one_job(runs, batcher):
    runs.gate.set()
    answers = [batcher.submit(work, cost) for work, cost in ((0, 1), (1, 60), (2, 40), (3, 1), (4, 500), (5, 1))]
    await asyncio.gather(*answers)
    assert runs.batches == [[0], [1, 2], [3], [4], [5]]


@in_loop
async def test_questions_wait_for_one_batch_of_bulk_at_most_and_bulk_for_one_of_questions(runs, batcher):
    answers = [batcher.submit(work, 100, bulk=True) for work in range(40)]
    await begun(runs)
    answers += [batcher.submit(work, 100) for work in (100, 101, 102)]
    runs.gate.set()
    await asyncio.gather(*answers)
    assert runs.batches[:8] == [[0], [100], [1], [101], [2], [102], [3], [4]]


@in_loop
async def test_the_pieces_of_several_texts_are_bulk_and_one_text_is_a_question(runs, batcher):
    runs.gate.set()
    bulk, submit = [], batcher.submit
    batcher.submit = lambda *job, **queue: bulk.append(queue["bulk"]) or submit(*job, **queue)
    for texts, lengths in ((["the cat"], [1]), (["the cat"] * 100, [64, 36])):
        assert await in_pieces(batcher, silent, len, texts) == [2 * length for length in lengths]
    assert bulk == [False, True, True]


@in_loop
async def test_cancelled_jobs_are_not_computed(runs, batcher):
    first, second, third = (batcher.submit(work, 1) for work in (1, 2, 3))
    await begun(runs)
    first.cancel()  # too late, and no harm
    second.cancel()
    runs.gate.set()
    assert await third == 6
    assert runs.batches == [[1], [3]]


@in_loop
async def test_an_answer_that_is_an_error_is_its_own_only(runs, batcher):
    runs.gate.set()
    _, bad, good = (batcher.submit(work, 1) for work in (1, "wrong", 3))
    assert await good == 6
    with pytest.raises(ValueError, match="wrong"):
        await bad


@in_loop
async def test_a_batch_that_breaks_is_an_error_to_all_of_it_and_to_no_other(runs, batcher):
    _, broken, too = (batcher.submit(work, 1) for work in (1, None, 3))
    await begun(runs)
    runs.gate.set()
    for answer in (broken, too):
        with pytest.raises(TypeError):
            await answer
    assert await batcher.submit(4, 1) == 8


def test_pieces_cost_no_more_than_a_batch_and_short_texts_count_as_more_than_they_are():
    texts = ["x" * n for n in (3000, 1096, 1, 9000, 5, 5)]
    cut = pieces(texts)
    assert [[len(text) for text in piece] for piece in cut] == [[3000, 1096], [1], [9000], [5, 5]]
    assert all(cost(piece) <= batching.MOST_CHARACTERS or len(piece) == 1 for piece in cut)
    assert cost(["", "ab"]) == 2 * batching.FEWEST_CHARACTERS
    assert len(pieces([""] * 1000)) == -(-1000 // (batching.MOST_CHARACTERS // batching.FEWEST_CHARACTERS))


def test_to_be_cancelled_from_outside_is_something_else():
    async def test():
        answer = asyncio.get_running_loop().create_future()
        waiting = asyncio.ensure_future(while_connected(silent, answer))
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(test())
