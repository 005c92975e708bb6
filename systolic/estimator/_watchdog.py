"""Says what a run is stuck at, while it is stuck: phase, time, the state of the input queue, the stack of each thread.

For hangs that no exception reports: an input pipeline that waits for a lock, a host that never joins a collective, a
compile without end. It does not cure them.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import linecache
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import FrameType
from typing import TextIO

from systolic._errors import InputError

_LIBRARY = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Watchdog:
    """Watches for ``beat``; reports once per stall, and once more when the stall is over.

    The report is written by a thread of its own, so it comes also while the main thread waits inside compiled code.
    Should that code hold Python's global lock, no thread can run: then the interpreter's ``faulthandler``, which needs
    no lock, prints bare stacks after one and a half times the limit (only where ``stream`` is a real file). Its timer
    is one for the whole process and is the watchdog's while a watchdog runs.

    Args:
        limit_seconds: a pause between two beats longer than this is a stall.
        stream: where to report; ``sys.stderr`` at the time of the report, if not given.
        queue_state: called for a line about the training input; must not block.

    Raises:
        InputError: a limit that is not positive.

    Example:
        >>> with Watchdog(300.0) as watchdog:
        ...     for step in range(3):
        ...         watchdog.beat("train")
    """

    def __init__(
        self,
        limit_seconds: float,
        stream: TextIO | None = None,
        *,
        queue_state: Callable[[], str] | None = None,
    ) -> None:
        self._limit = float(limit_seconds)
        if not self._limit > 0:
            raise InputError(f"Watchdog: limit_seconds is {self._limit}; it must be a positive number of seconds")
        self._stream, self._queue_state = stream, queue_state
        self._last = (time.monotonic(), "starting")
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def beat(self, phase: str) -> None:
        """Say that the run is alive and what it does next; about 100 ns."""
        self._last = (time.monotonic(), phase)

    def start(self) -> Watchdog:
        """Begin to watch; the context manager does it for you."""
        if self._thread is None:
            self._last = (time.monotonic(), self._last[1])
            self._ended.clear()
            self._thread = threading.Thread(target=self._watch, name="systolic-watchdog", daemon=True)
            self._thread.start()
        return self

    def close(self) -> None:
        """End the thread; a second call does nothing."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._ended.set()
            thread.join()

    def __enter__(self) -> Watchdog:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _watch(self) -> None:
        reported: tuple[float, str] | None = None
        wait, limit = 0.0, self._limit
        try:
            while not self._ended.wait(wait):
                last = self._last
                paused = time.monotonic() - last[0]
                if reported is not None and last is not reported:
                    self._say(f"systolic: going on after {last[0] - reported[0]:.1f} s in {reported[1]!r}\n")
                    reported = None
                if reported is None and paused >= limit:
                    self._say(self._report(last[1], paused))
                    reported = last
                wait = min(max(limit - paused, 0.01), limit / 4)
                self._arm(1.5 * limit + wait)
        finally:
            faulthandler.cancel_dump_traceback_later()

    def _arm(self, seconds: float) -> None:
        stream = self._stream or sys.stderr
        with contextlib.suppress(AttributeError, io.UnsupportedOperation, ValueError, OSError):  # not a real file
            stream.fileno()
            faulthandler.dump_traceback_later(seconds, file=stream)

    def _say(self, text: str) -> None:
        stream = self._stream or sys.stderr
        with contextlib.suppress(OSError, ValueError, AttributeError):  # a closed stream must not end the watch
            stream.write(text)
            stream.flush()

    def _report(self, phase: str, paused: float) -> str:
        lines = [f"systolic: no progress for {paused:.1f} s (limit {self._limit:g} s) in phase {phase!r}"]
        if self._queue_state is not None:
            try:
                lines.append(f"  training input: {self._queue_state()}")
            except Exception as error:  # the report must come whatever the user's pipeline does
                lines.append(f"  training input: unknown ({type(error).__name__}: {error})")
        lines.append(format_stacks(skip={threading.get_ident()}))
        lines.append("systolic: end of report; waiting on")
        return "\n".join(lines) + "\n"


def format_stacks(skip: set[int] | None = None) -> str:
    """Stacks of all Python threads, newest call last; the main thread first.

    The user's frames are shown with their source line; those of this library, of installed packages and of Python's
    own library take one line without it.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().ident
    parts = []
    for ident, frame in sorted(sys._current_frames().items(), key=lambda item: item[0] != main):
        if ident in (skip or ()):
            continue
        parts.append(f"  thread {names.get(ident, 'unknown to Python')!r}:")
        parts.extend(_format_stack(frame))
    return "\n".join(parts)


def _format_stack(frame: FrameType) -> list[str]:
    lines = []
    for at, number in reversed(list(traceback.walk_stack(frame))):
        path, name = at.f_code.co_filename, at.f_code.co_name
        place, foreign = _shorten(path)
        lines.append(f"    {place}:{number} in {name}")
        source = "" if foreign else linecache.getline(path, number, at.f_globals).strip()
        if source:
            lines.append(f"        {source}")
    return lines


def _shorten(path: str) -> tuple[str, bool]:
    """A path to show, and whether it is library code."""
    if path.startswith(_LIBRARY + os.sep):
        return "systolic" + path[len(_LIBRARY) :], True
    for mark in ("site-packages", "dist-packages"):
        if mark in path:
            return path.split(mark, 1)[1].lstrip("/\\"), True
    standard = os.path.dirname(os.__file__)
    if path.startswith(standard + os.sep):
        return path[len(standard) + 1 :], True
    return path, path.startswith("<")
