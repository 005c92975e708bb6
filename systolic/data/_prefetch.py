"""Read and transfer ahead of the device, on one thread."""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from systolic._errors import InputError
from systolic._log import logger


class _Shared:
    """What the thread and the consumer share. A thread holding the `Prefetch` would keep it from being freed."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.changed = threading.Condition()  # re-entrant: a finalizer may run on a thread that holds it
        self.items: deque[Any] = deque()
        self.done = False
        self.closed = False
        self.error: BaseException | None = None

    def put(self, item: Any) -> bool:
        """Wait for room; False when the consumer has gone."""
        with self.changed:
            while len(self.items) >= self.depth and not self.closed:
                self.changed.wait()
            if self.closed:
                return False
            self.items.append(item)
            self.changed.notify_all()
            return True

    def finish(self, error: BaseException | None) -> None:
        with self.changed:
            self.done, self.error = True, error
            self.changed.notify_all()

    def close(self) -> None:
        with self.changed:
            self.closed = True
            self.items.clear()
            self.changed.notify_all()


class Prefetch:
    """Iterator over ``put(item)`` for each item of a source, computed up to ``depth`` items ahead; made by `prefetch`.

    Attributes:
        wait_seconds: seconds the consumer has spent waiting for an item.
    """

    def __init__(self, source: Iterable[Any], put: Callable[[Any], Any], depth: int = 2) -> None:
        if isinstance(depth, bool) or not isinstance(depth, int) or depth < 1:
            raise InputError(f"depth: {depth!r} seen, a positive integer wanted: the number of batches to hold ready")
        self.wait_seconds = 0.0
        self._shared = _Shared(depth)
        self._thread = threading.Thread(
            target=_work, args=(source, put, self._shared), name="systolic-prefetch", daemon=True
        )
        self._finalizer = weakref.finalize(self, _release, self._shared, self._thread)
        self._thread.start()

    def __iter__(self) -> Prefetch:
        return self

    def __next__(self) -> Any:
        shared = self._shared
        with shared.changed:
            if not shared.items and not shared.done and not shared.closed:
                began = time.perf_counter()
                try:
                    while not shared.items and not shared.done and not shared.closed:
                        shared.changed.wait()
                finally:
                    self.wait_seconds += time.perf_counter() - began
            if shared.items:
                item = shared.items.popleft()
                shared.changed.notify_all()
                return item
            error, shared.error = shared.error, None
        if error is not None and not shared.closed:
            raise error
        raise StopIteration

    def close(self, timeout: float = 5.0) -> None:
        """Stop reading ahead, close the source on its own thread, and wait for that for at most ``timeout`` seconds.

        A source that blocks for longer is left behind on its daemon thread, with a log line.
        """
        self._shared.close()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)
            if self._thread.is_alive():
                logger.warning("input: the source has not come back %g s after closing; its thread is left", timeout)
        self._finalizer.detach()

    def __enter__(self) -> Prefetch:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()


def prefetch(source: Iterable[Any], put: Callable[[Any], Any], depth: int = 2) -> Prefetch:
    """Run a source and ``put`` ahead of the consumer on a background thread.

    Args:
        source: an iterable such as `Batches`, used on the thread only; its ``close``, if it has one, is called there.
        put: what to do with each item, as a rule moving it to the device.
        depth: items held ready; with the one being made and the one in use, ``depth + 2`` are alive.

    Returns:
        A `Prefetch`: iterate over it, and close it (it is a context manager). An exception of the source or of ``put``
        is raised once, at its place in the order, with its own traceback.

    Example:
        >>> with prefetch(range(3), lambda item: item * 10) as ahead:
        ...     list(ahead)
        [0, 10, 20]
    """
    return Prefetch(source, put, depth)


def _work(source: Iterable[Any], put: Callable[[Any], Any], shared: _Shared) -> None:
    error: BaseException | None = None
    try:
        iterator = iter(source)
        try:
            for item in iterator:
                if shared.closed or not shared.put(put(item)):
                    break
        finally:
            close = getattr(iterator, "close", None)
            if close is not None:
                close()
    except BaseException as raised:  # handed to the consumer, whatever it is
        error = raised
    shared.finish(error)


def _release(shared: _Shared, thread: threading.Thread) -> None:
    """At garbage collection, and at exit, where a thread inside the runtime would crash the interpreter's shutdown."""
    shared.close()
    if thread is not threading.current_thread() and thread.is_alive():
        thread.join(timeout=0.5)
