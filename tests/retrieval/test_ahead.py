import threading

import pytest

from endx_jax.retrieval.ahead import ahead


def test_all_items_come_in_their_order():
    assert list(ahead(range(10), 3)) == list(range(10))
    assert list(ahead([], 3)) == []


def test_items_are_made_in_a_thread_before_they_are_asked_for():
    made, third = [], threading.Event()

    def items():
        for item in range(5):
            made.append((item, threading.current_thread() is threading.main_thread()))
            if item == 2:
                third.set()
            yield item

    coming = ahead(items(), 2)
    assert next(coming) == 0
    assert third.wait(5)  # two more than were asked for, and not three
    assert made == [(0, False), (1, False), (2, False)]
    coming.close()


def test_what_fails_is_raised_where_it_was_due():
    def items():
        yield 1
        raise KeyError("broken")

    coming = ahead(items(), 3)
    assert next(coming) == 1
    with pytest.raises(KeyError, match="broken"):
        next(coming)
