"""SIGTERM and Ctrl-C as a request: finish the dispatch, or give up waiting for input, save, stop; a second one ends at once."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")


class _Interrupted(KeyboardInterrupt):
    """Raised by the handler in code that waits for input: what libraries do on Ctrl-C is right here too."""


class StopRequest:
    """Whether a signal asked the run to stop; ``number`` is the signal, 0 for none."""

    def __init__(self) -> None:
        self.number = 0
        self.waiting = False  # whether the handler may interrupt what the main thread does
        self.again = False  # whether the next signal is our own, in place of an interrupt that was lost

    def __bool__(self) -> bool:
        return self.number != 0

    def items(self, source: Iterable[T]) -> Iterator[T]:
        """The items of ``source`` until a stop is asked for; a signal interrupts the wait for the next one.

        Python code is interrupted where it stands, as by Ctrl-C, and the source is not to be used again; a wait inside
        of compiled code ends when that code comes back.
        """
        iterator = iter(source)
        try:
            while True:
                self.waiting = True  # before the number is looked at: no signal falls between the two
                if self.number:
                    return
                try:
                    item = next(iterator)
                except StopIteration:
                    return
                self.waiting = False
                yield item
        except _Interrupted:
            return
        finally:
            self.waiting = False

    def wait(self, function: Callable[[], T]) -> T | None:
        """``function()``, which waits for input; ``None`` once a stop is asked for."""
        return next(self.items(function() for _ in range(1)), None)

    def finish(self) -> None:
        """End as the signal would have: KeyboardInterrupt, or exit status 128 + signal."""
        if self.number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + self.number)


@contextlib.contextmanager
def stop_on_signal() -> Iterator[StopRequest]:
    """Turn the first SIGTERM or Ctrl-C in the body into a :class:`StopRequest`; a second one ends the process at once.

    At a prompt or in a notebook a second Ctrl-C raises KeyboardInterrupt, and where the program had a handler of its
    own, that is called. Signals that the process ignores stay ignored. Signals reach the main thread only; elsewhere
    nothing changes. Former handlers come back afterwards.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    former = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    former = {number: handler for number, handler in former.items() if handler is not signal.SIG_IGN}

    def handle(number: int, frame: FrameType | None) -> None:
        if request.again:
            request.again = False
            if request.waiting:
                raise _Interrupted
            return
        if request.number:
            _end_at_once(number, former[number], frame)
            return
        request.number = number
        if request.waiting:
            raise _Interrupted

    main, unraisable = threading.get_ident(), sys.unraisablehook

    def strike_again() -> None:
        request.again = True
        signal.pthread_kill(main, request.number)

    def lost(ignored: Any) -> None:
        # The signal fell into a finalizer or a callback of the garbage collector, which let no exception out.
        if ignored.exc_type is not _Interrupted:
            unraisable(ignored)
        elif request.waiting:
            timer = threading.Timer(0.05, strike_again)
            timer.daemon = True
            timer.start()

    for number in former:
        signal.signal(number, handle)
    sys.unraisablehook = lost
    try:
        yield request
    finally:
        if sys.unraisablehook is lost:  # else one that was set meanwhile stays, and passes on to it
            sys.unraisablehook = unraisable
        for number, handler in former.items():
            signal.signal(number, handler or signal.SIG_DFL)


def _end_at_once(number: int, former: Any, frame: FrameType | None) -> None:
    if callable(former) and former is not signal.default_int_handler:
        former(number, frame)
    elif number == signal.SIGINT and hasattr(sys, "ps1"):  # a person at a prompt wants it back
        raise KeyboardInterrupt
    else:
        if os.isatty(1):
            os.write(1, b"\x1b[?25h\n")  # the cursor, which the progress line hides
        # Not by way of an exception: what unwinds may wait, for a write or a thread, and Python's files may be in use.
        os.write(2, b"systolic: ended at once by a second signal; what was saved before is whole\n")
        os._exit(128 + number)
