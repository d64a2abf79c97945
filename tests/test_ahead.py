"""Overlapping work: order, bounds, errors and clean ends."""
import gc
import threading
import time
import weakref

import pytest
from latentsync_rtx.lipsync.ahead import ahead, in_order


def source(taken, count=100, fail_at=None):
    try:
        for i in range(count):
            if i == fail_at:
                raise ValueError("broken at 3")
            taken.append(i)
            yield i
    finally:
        taken.append("closed")


def test_ahead_gives_everything_in_order():
    taken = []
    with ahead(source(taken)) as items:
        assert list(items) == list(range(100))
    assert taken[-1] == "closed"


def test_ahead_never_runs_further_than_its_depth():
    taken = []
    with ahead(source(taken), depth=3) as items:
        for item in items:
            time.sleep(0.001)
            assert len(taken) <= item + 3 + 3  # waiting, in the thread's hand, in ours


def test_ahead_hands_errors_to_the_reader():
    with ahead(source([], fail_at=3)) as items, pytest.raises(ValueError, match="broken at 3"):
        assert list(items) == [0, 1, 2]


def test_leaving_early_stops_the_thread_and_closes_the_source():
    taken, before = [], threading.active_count()
    with pytest.raises(KeyboardInterrupt), ahead(source(taken)) as items:
        next(items)
        raise KeyboardInterrupt
    assert taken[-1] == "closed"
    assert len(taken) < 20
    assert threading.active_count() == before


def test_in_order_keeps_order_and_works_at_once():
    barrier = threading.Barrier(2, timeout=10)  # passes only when two calls run at the same time

    def work(i):
        if i < 2:
            barrier.wait()
        time.sleep(0.002 * (i % 3))
        return i * i

    assert list(in_order(work, range(20), workers=2)) == [i * i for i in range(20)]


def test_in_order_hands_errors_over_and_stops():
    done = []

    def work(i):
        done.append(i)
        if i == 2:
            raise ValueError("two")
        return i

    with pytest.raises(ValueError, match="two"):
        list(in_order(work, range(1000)))
    assert len(done) < 20


def test_in_order_takes_few_items_on_its_way():
    taken = []
    for count, _ in enumerate(in_order(lambda i: i, source(taken), workers=2), 1):
        assert len(taken) <= count + 5


def test_ctrl_c_while_the_thread_starts_stops_it(monkeypatch):
    start, started, taken = threading.Thread.start, [], []

    def interrupted(thread):
        start(thread)
        started.append(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt), ahead(source(taken), depth=1):
        pytest.fail("nobody reads")
    started[0].join(5)
    assert not started[0].is_alive() and taken[-1] == "closed"


def test_an_error_keeps_nothing_of_the_thread_once_it_is_dealt_with():
    class Activations:
        pass

    held = []

    def failing():
        large = Activations()
        held.append(weakref.ref(large))
        raise MemoryError
        yield

    gc.disable()
    try:
        with pytest.raises(MemoryError), ahead(failing()) as items:
            list(items)
        assert held[0]() is None
    finally:
        gc.enable()
