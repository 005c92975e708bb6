"""What is seen while compiles run: a spinner on a terminal, a line every few seconds in a log."""

from __future__ import annotations

import sys
import threading
from types import TracebackType
from typing import Any, TextIO

_EVERY = 10.0  # s between lines where the stream is not a terminal


class CompileProgress:
    """A context manager whose instance goes to ``CheckOptions(on_progress=...)``.

    Args:
        stream: where to draw; ``sys.stderr`` by default, so that stdout stays the report's.

    Example:
        >>> from systolic.check import CheckOptions
        >>> with CompileProgress() as progress:
        ...     options = CheckOptions(on_progress=progress)
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        from rich.console import Console

        self._console = Console(file=sys.stderr if stream is None else stream, highlight=False)
        self._status: Any = None
        self._lock = threading.Lock()  # compiles report from threads of their own
        self._printed: dict[tuple[str, str], float] = {}

    def __call__(self, program: str, target: str, seconds: float, stage: str) -> None:
        """Take in that the compile of ``program`` for ``target`` is in ``stage``, ``seconds`` after its start."""
        with self._lock:
            text = f"{program} for {target}: {stage}, {seconds:.0f} s"
            if self._status is not None:
                self._status.update(text)
            elif seconds - self._printed.get((program, target), -_EVERY) >= _EVERY:
                self._printed[program, target] = seconds
                self._console.print(text, soft_wrap=True)

    def __enter__(self) -> CompileProgress:
        if self._console.is_terminal:
            self._status = self._console.status("preparing")
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None
