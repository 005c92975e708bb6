"""Input for a loop of dispatches: made in the loop while that is cheap, ahead of it on a thread once it is not.

Dispatch is asynchronous: while the device works, the host is free to make the next batch. A thread gains nothing
there and costs two switches of Python's global lock per batch, several times the dispatch itself for a small model. It
pays when input takes long (decoding, disks, transfers that block), so the feed measures, and switches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ._prefetch import Prefetch, prefetch

_CHEAP = 1e-3  # s an item: below it the loop makes its input itself
_SLOW_ITEMS = (
    4  # dearer items than that, and the thread takes over; halved every _WINDOW items, so hiccups are forgiven
)
_WINDOW = 64


class Feed:
    """Iterator over the items of a source; a context manager that closes it.

    Args:
        source: an iterable; used from one thread at a time.
        put: host to device, called on the thread only; items made in the loop come as they are (a compiled call
            transfers NumPy arrays itself, cheaper than a separate ``device_put``).
        depth: items that the thread keeps ready.

    Attributes:
        wait_seconds: seconds the loop spent on getting items: making them, or waiting for the thread.
    """

    def __init__(self, source: Iterable[Any], put: Callable[[Any], Any], depth: int = 2) -> None:
        self._source: Iterator[Any] = iter(source)
        self._put, self._depth = put, depth
        self._slow = 0
        self._items = 0
        self._spent = 0.0
        self._ahead: Prefetch | None = None

    @property
    def wait_seconds(self) -> float:
        return self._spent + (self._ahead.wait_seconds if self._ahead is not None else 0.0)

    def __iter__(self) -> Feed:
        return self

    def __next__(self) -> Any:
        if self._ahead is not None:
            return next(self._ahead)
        started = time.perf_counter()
        item = next(self._source)
        seconds = time.perf_counter() - started
        self._spent += seconds
        self._items += 1
        if seconds > _CHEAP and self._items > 1:  # the first one also opens files and imports
            self._slow += 1
            if self._slow >= _SLOW_ITEMS:
                source, self._source = self._source, iter(())  # from here on the thread's, whatever interrupts this
                self._ahead = prefetch(source, self._put, self._depth)
        elif self._items % _WINDOW == 0:
            self._slow //= 2
        return item

    def state(self) -> str:
        """One line for a person who wonders what a run waits for."""
        return "made by the loop itself, no queue" if self._ahead is None else self._ahead.state()

    def close(self) -> None:
        """Stop the thread, if any, and close the source."""
        if self._ahead is not None:
            self._ahead.close()
        elif (close := getattr(self._source, "close", None)) is not None:
            close()

    def __enter__(self) -> Feed:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
