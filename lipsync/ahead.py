"""Work that overlaps: reading, computing and writing a stream at the same time, with a bounded number of items on the way."""
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext, suppress
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

_END = object()
WAIT_SECONDS = 0.1  # at a time: a wait without an end would keep Ctrl-C from a Windows program


@contextmanager
def ahead(items: Iterable[T], depth: int = 4) -> Iterator[Iterator[T]]:
    """Iterate over `items` in a thread of its own, up to `depth` items ahead of the reader.

    What `items` raises is raised to the reader. Leaving the context stops the thread after the item in hand and closes a generator.
    """
    waiting: queue.Queue = queue.Queue(depth)
    stop, ended = threading.Event(), threading.Event()  # is_alive() is wrong after a join that Ctrl-C cut short

    def put(entry) -> bool:
        while not stop.is_set():
            with suppress(queue.Full):
                waiting.put(entry, timeout=WAIT_SECONDS)
                return True
        return False

    def read() -> None:
        try:
            with closing(items) if hasattr(items, "close") else nullcontext():
                for item in items:
                    if not put((item, None)):
                        return
            put((_END, None))
        except BaseException as raised:  # whatever it is belongs to the reader
            put((_END, raised))
        finally:
            ended.set()

    def received() -> Iterator[T]:
        while True:
            try:
                item, error = waiting.get(timeout=WAIT_SECONDS)
            except queue.Empty:
                continue
            if error is not None:
                try:
                    raise error
                finally:
                    del error  # it holds this frame, by which it would hold itself, and what the thread had in hand
            if item is _END:
                return
            yield item

    thread = threading.Thread(target=read, name="latentsync-ahead", daemon=True)
    try:
        thread.start()
        yield received()
    finally:
        stop.set()
        while thread.ident is not None and not ended.wait(WAIT_SECONDS):
            pass


def in_order(function: Callable[[T], R], items: Iterable[T], workers: int = 2) -> Iterator[R]:
    """`function` of every item, computed by `workers` threads, given back in order; at most `2 * workers` items are on the way."""
    running: deque = deque()
    with ThreadPoolExecutor(workers, thread_name_prefix="latentsync-work") as pool:
        try:
            for item in items:
                running.append(pool.submit(function, item))
                if len(running) >= 2 * workers:
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()
        finally:
            for future in running:
                future.cancel()
