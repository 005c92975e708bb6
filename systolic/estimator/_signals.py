"""SIGTERM and Ctrl-C as a request: finish the dispatch, save, stop."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class StopRequest:
    """Whether a signal asked the run to stop; ``number`` is the signal, 0 for none."""

    def __init__(self) -> None:
        self.number = 0

    def __bool__(self) -> bool:
        return self.number != 0

    def finish(self) -> None:
        """End as the signal would have: KeyboardInterrupt, or exit status 128 + signal."""
        if self.number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + self.number)


@contextlib.contextmanager
def stop_on_signal() -> Iterator[StopRequest]:
    """Turn the first SIGTERM or Ctrl-C in the body into a :class:`StopRequest`; a second one acts at once.

    Signals reach the main thread only; elsewhere nothing changes. Former handlers come back afterwards.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    former = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def handle(number: int, frame: FrameType | None) -> None:
        request.number = number
        signal.signal(number, former[number] or signal.SIG_DFL)

    for number in former:
        signal.signal(number, handle)
    try:
        yield request
    finally:
        for number, handler in former.items():
            signal.signal(number, handler or signal.SIG_DFL)
