"""One live line about a run: where it is, how fast, how well, how long still, and how much it waits for its input.

On a terminal the line is drawn in place by rich; elsewhere (a log file, a CI job) a plain line comes every ten seconds.
Drawing takes place in the loop's own thread, at most ten times a second and at most a hundredth of the time; only a
phase that holds the loop up (a compile, an evaluation, a save) is kept alive by a thread of its own.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from systolic._log import logger
from systolic._page import format_value

_DRAW_EVERY = 0.1  # s
_SHARE = 100  # a draw that took t seconds is followed by 100·t without one
_WINDOW = 5.0  # s over which the rate and the waiting share are taken
_SLOW_PHASE = 1.0  # s after which a phase is worth a line of its own in a log
_BAR = 24  # cells


class Progress:
    """Shows how a run goes on. A context manager; ``close`` leaves the last state on the screen.

    It never fails the run: when the stream is closed or broken it falls silent, with one warning.

    Args:
        total: step at which the run ends; None if unknown (no bar, no ETA).
        start: step at which it begins.
        examples_per_step: global batch size, for the examples/s.
        label: first word of the line.
        enabled: False draws nothing.
        stream: where to draw; ``sys.stdout``, if not given.
        plain_interval: seconds between lines where the stream is not a terminal.

    Example:
        >>> with Progress(total=2, examples_per_step=32, enabled=False) as progress:
        ...     for step in (1, 2):
        ...         progress.update(step, 0.5)
    """

    def __init__(
        self,
        total: int | None,
        *,
        start: int = 0,
        examples_per_step: int | None = None,
        label: str = "train",
        enabled: bool = True,
        stream: TextIO | None = None,
        plain_interval: float = 10.0,
    ) -> None:
        self._total, self._start, self._label = total, start, label
        self._examples_per_step = examples_per_step
        self._stream = sys.stdout if stream is None else stream
        self._enabled = enabled and self._stream is not None
        self._plain_interval = plain_interval
        self._latest: tuple[int, Any, float] = (start, None, 0.0)
        self._loss: float | None = None
        self._over = False  # it ends where it stands: no time to come
        self._drawn: tuple[int, Any] | None = None  # step and loss that were drawn last
        self._pending: Any = None
        self._phase: tuple[str, float] | None = None  # name, when it began
        self._busy = 0.0  # seconds spent in phases: not counted in the rate
        self._lock = threading.Lock()  # the loop and a phase's thread may both draw
        self._live: Any = None
        self._next = float("inf")  # time of the next draw: never, before start and after close
        self._samples = deque([(time.monotonic(), start, 0.0)])  # (time at work, step, seconds waited for input)

    # --- life ---

    def start(self) -> Progress:
        """Begin to draw; the context manager does it for you."""
        if not self._enabled:
            return self
        if _is_terminal(self._stream):
            from rich.console import Console
            from rich.live import Live

            console = Console(file=self._stream, highlight=False)
            self._live = Live(console=console, auto_refresh=False, get_renderable=self._renderable)
            self._live.start(refresh=False)
        now = time.monotonic()
        self._samples[0] = (now, self._start, 0.0)
        self._next = now + (_DRAW_EVERY if self._live else min(_SLOW_PHASE, self._plain_interval))
        return self

    def close(self) -> None:
        """Draw the last state and let go of the terminal; a second call does nothing."""
        if self._next == float("inf"):
            return
        self._over = True
        if self._live is not None or self._drawn != self._latest[:2]:
            self._draw(time.monotonic())
        self._next = float("inf")
        live, self._live = self._live, None
        if live is not None:
            self._guarded(live.stop)
        self._enabled = False

    def __enter__(self) -> Progress:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- what the loop calls ---

    def update(self, step: int, loss: Any = None, input_wait: float = 0.0) -> None:
        """Take in where the run is; draws when it is time. Under a microsecond otherwise.

        Args:
            step: steps done.
            loss: the newest loss: a number, or an array still being computed, which is read only once it is ready.
            input_wait: seconds the loop has waited for input since the run began.
        """
        self._latest = (step, loss, input_wait)
        now = time.monotonic()
        if now >= self._next:
            self._draw(now)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Show what holds the loop up, with the seconds it has taken: ``with progress.phase("compiling train"):``."""
        if self._next == float("inf"):
            yield
            return
        began = time.monotonic()
        outer, self._phase = self._phase, (name, began)
        ended = threading.Event()
        ticker = threading.Thread(target=self._tick, args=(name, ended), name="systolic-progress", daemon=True)
        ticker.start()
        try:
            yield
        finally:
            ended.set()
            ticker.join()
            now = time.monotonic()
            self._phase = outer
            if outer is None:
                self._busy += now - began
            if self._live is not None:
                self._draw(now)
            elif now - began >= _SLOW_PHASE:
                self.note(f"{name}: {format_value(now - began, 'seconds')}")

    def note(self, text: str) -> None:
        """Print a line that stays, above the live one."""
        if self._next == float("inf"):
            return
        if self._live is None:
            self._plain(text)
        else:
            from rich.text import Text

            with self._lock:
                self._guarded(lambda: self._live.console.print(Text(text)))

    # --- drawing ---

    def _tick(self, name: str, ended: threading.Event) -> None:
        if self._live is None:
            if not ended.wait(_SLOW_PHASE):
                self._plain(f"{name}…")
            return
        wait = 0.0
        while not ended.wait(wait):
            self._draw(time.monotonic())
            wait = 0.2

    def _draw(self, now: float) -> None:
        with self._lock:
            step, loss, input_wait = self._latest
            # The newest loss of a fast loop is never ready; the one seen at the draw before has become so meanwhile.
            for candidate in (loss, self._pending):
                if candidate is not None and _is_ready(candidate):
                    self._loss = float(candidate)
                    break
            self._pending = loss
            at = now - self._busy
            if self._phase is None:
                self._samples.append((at, step, input_wait))
                while len(self._samples) > 2 and self._samples[1][0] < at - _WINDOW:
                    self._samples.popleft()
            if self._live is not None:
                self._guarded(self._live.refresh)
        self._drawn = self._latest[:2]
        if self._live is None:
            self._plain("  ".join(self.parts()))
        done = time.monotonic()
        pause = max(_DRAW_EVERY, _SHARE * (done - now)) if self._live is not None else self._plain_interval
        if self._next != float("inf"):
            self._next = done + pause

    def parts(self) -> list[str]:
        """The line in pieces: step, rates, loss, waiting share, ETA or phase."""
        step, _, _ = self._latest
        parts = [self._label, f"{step:,}/{self._total:,}" if self._total else f"{step:,}"]
        (t0, s0, w0), (t1, s1, w1) = self._samples[0], self._samples[-1]
        rate = (s1 - s0) / (t1 - t0) if t1 > t0 and s1 > s0 else 0.0
        if rate:
            text = f"{format_value(rate, digits=3)} steps/s"
            if self._examples_per_step:
                text += f" · {format_value(rate * self._examples_per_step, digits=3)} examples/s"
            parts.append(text)
        if self._loss is not None:
            parts.append(f"loss {format_value(self._loss)}")
        if rate and w1 > w0:
            parts.append(f"input wait {format_value(min(1.0, (w1 - w0) / (t1 - t0)), 'percent')}")
        if self._phase is not None:
            name, began = self._phase
            took = time.monotonic() - began
            parts.append(f"{name}… " + (f"{took:.1f} s" if took < 60 else format_value(took, "seconds")))
        elif rate and self._total and self._total > step and not self._over:
            parts.append(f"ETA {_clock((self._total - step) / rate)}")
        return parts

    def _renderable(self) -> Any:
        from rich.text import Text

        label, count, *rest = self.parts()
        line = Text(no_wrap=True, overflow="ellipsis")
        line.append(label, "bold")
        wide = self._live is not None and self._live.console.width >= 100
        if wide and self._total and self._total > self._start:
            share = (self._latest[0] - self._start) / (self._total - self._start)
            full = max(0, min(_BAR, round(share * _BAR)))
            line.append("  ").append("━" * full, "cyan").append("━" * (_BAR - full), "bright_black")
        line.append(f"  {count}", "bold cyan")
        for part in rest:
            style = "yellow" if "…" in part else "green" if part.startswith("loss") else ""
            line.append("  ").append(part, style)
        return line

    def _plain(self, text: str) -> None:
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        if "utf" not in encoding.lower():
            text = text.replace("…", "...").replace("·", "|").encode(encoding, "replace").decode(encoding)
        self._guarded(lambda: print(text, file=self._stream, flush=True))

    def _guarded(self, draw: Any) -> None:
        try:
            draw()
        except (OSError, ValueError) as error:  # a broken pipe, a closed file
            if self._enabled:
                self._enabled, self._next = False, float("inf")
                logger.warning("progress is not shown any more: %s", error)


def _is_ready(value: Any) -> bool:
    ready = getattr(value, "is_ready", None)
    return ready is None or ready()


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown")
    except (AttributeError, ValueError):
        return False


def _clock(seconds: float) -> str:
    """A time to come, as m:ss or h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
