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
    """What the thread and the consumer share. A thread holding the `Prefetch` would keep it from being freed.

    Waking a thread costs tens of microseconds, an append to a deque a tenth of one. So items pass without the lock, a
    side is woken only if it sleeps, and the thread, once it has filled the queue, sleeps until half of it is used.
    """

    def __init__(self, depth: int) -> None:
        self.depth, self.low = depth, depth // 2
        self.changed = threading.Condition()  # re-entrant: a finalizer may run on a thread that holds it
        self.items: deque[Any] = deque()
        self.sleeps = {"thread": False, "consumer": False}
        self.done = False
        self.closed = False
        self.error: BaseException | None = None

    def put(self, item: Any) -> bool:
        """Add an item; then wait for room. False when the consumer has gone."""
        self.items.append(item)
        self.wake("consumer")
        if len(self.items) >= self.depth:
            self.sleep("thread", lambda: len(self.items) <= self.low)
        if self.closed:
            self.items.clear()
        return not self.closed

    def take(self) -> Any:
        """Remove an item, or raise IndexError if there is none."""
        item = self.items.popleft()
        if len(self.items) <= self.low:
            self.wake("thread")
        return item

    def sleep(self, who: str, until: Callable[[], bool]) -> None:
        """Sleep until a condition holds or the work is over. The flag is up before the condition is looked at, and the
        other side looks at the flag after it has changed something: no wake-up is lost."""
        with self.changed:
            self.sleeps[who] = True
            self.changed.notify_all()  # an interrupt may have come between a change and its wake-up
            try:
                while not (until() or self.done or self.closed):
                    self.changed.wait(1.0)  # a signal that another thread takes wakes nobody: look now and then
            finally:
                self.sleeps[who] = False

    def wake(self, who: str) -> None:
        if self.sleeps[who]:
            with self.changed:
                self.changed.notify_all()

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
        if not shared.closed:
            try:
                return shared.take()
            except IndexError:
                began = time.perf_counter()
                try:
                    shared.sleep("consumer", lambda: bool(shared.items))
                finally:
                    self.wait_seconds += time.perf_counter() - began
        if not shared.closed:
            if shared.items:
                return shared.take()
            error, shared.error = shared.error, None
            if error is not None:
                raise error
        raise StopIteration

    @property
    def ready(self) -> bool:
        """Whether the next item, the end or an error is there without a wait."""
        return bool(self._shared.items) or self._shared.done or self._shared.closed

    def close(self, timeout: float = 1.0) -> None:
        """Stop reading ahead, close the source on its own thread, and wait for that for at most ``timeout`` seconds.

        A source that blocks for longer is left behind on its daemon thread, with a log line; should it come back, it is
        closed there.
        """
        self._shared.close()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)
            if self._thread.is_alive():
                logger.warning("input: the source has not come back %g s after closing; its thread is left", timeout)
        self._finalizer.detach()

    def state(self) -> str:
        """How full the queue is and what the thread does, in words."""
        shared = self._shared
        does = "has ended" if shared.done else "rests" if shared.sleeps["thread"] else "is at work on the next"
        return f"{len(shared.items)} of {shared.depth} items ready; the thread that makes them {does}"

    def __enter__(self) -> Prefetch:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()


def prefetch(source: Iterable[Any], put: Callable[[Any], Any], depth: int = 2) -> Prefetch:
    """Run a source and ``put`` ahead of the consumer on a background thread.

    Args:
        source: an iterable such as `Batches`, used on the thread only; its ``close``, if it has one, is called there.
        put: what to do with each item, as a rule moving it to the device.
        depth: items held ready; with the one in use and the one being made, up to ``depth + 2`` are alive. When that
            many are ready the thread rests until half are used: for small batches and short steps, 16 or more make the
            cost of changing threads small.

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
                del item  # not kept alive while waiting for the next
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
