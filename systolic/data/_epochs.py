"""One epoch after another of whatever an ``input_fn`` gives."""

from __future__ import annotations

from typing import Any

from systolic._errors import InputError

from ._door import Door
from ._readers import Reader, open_reader
from ._sources import is_iterator, obtain


class Epochs:
    """Opens a reader for each epoch and tells an end from an accident.

    Args:
        input_fn: data, or a callable that gives data for each epoch.
        door: what elements pass through.
        epochs: how many, or None for no end.
        start: position to begin at, or None.

    Attributes:
        reader: the reader of the epoch in progress; None before the first.
        over: whether the last epoch has ended.
    """

    def __init__(self, input_fn: Any, door: Door, epochs: int | None, start: dict[str, Any] | None) -> None:
        self._input_fn, self._door, self._count = input_fn, door, epochs
        self._start = None if start is None else _checked(start)
        self._epoch = 0 if start is None else start["epoch"]
        self._kept: Any = None
        self._last_iterator: Any = None
        self._once = False  # whether the source can be iterated over only once
        self.reader: Reader | None = None
        self.over = False

    def ready(self) -> bool:
        """Whether there is a row to read; opens the first epoch and goes on to later ones."""
        while not self.over:
            if self.reader is None:
                self.reader = self._open(self._start)
            if self.reader.peek():
                return True
            self.advance()
        return False

    def advance(self) -> None:
        """Go on to the next epoch. Raises InputError where the one just read was empty: repeating it would never end."""
        if self.reader.rows_read == 0:
            at = f"epoch {self._epoch}" if self._epoch else "the data set"
            hint = ". Return a fresh iterable from input_fn for each epoch"
            if self._epoch == 0:
                used = (
                    ". It is an iterator, which runs once, and may be used up: let input_fn make a new one in each call"
                )
                hint = used if self._once else ""
            raise InputError(f"input: {at} has 0 examples; at least one wanted{hint}")
        if self._count is not None and self._epoch + 1 >= self._count:
            self.over = True
            return
        self._last_iterator = self.reader.iterator
        self.reader.close()
        self._epoch += 1
        self.reader = self._open(None)

    def position(self) -> dict[str, Any]:
        """What has been read so far, JSON-able; ``start`` of another `Epochs`."""
        if self.reader is not None:
            return self.reader.position()
        return {"epoch": 0, "element": 0, "row": 0, "example": 0} if self._start is None else self._start

    def close(self) -> None:
        """No more epochs. An iterator that was given as it is stays open: it is its owner's."""
        self.over = True
        if self.reader is not None and not is_iterator(self._input_fn):
            self.reader.close()

    def _open(self, start: dict[str, Any] | None) -> Reader:
        source = self._kept
        if source is None:
            source, keep = obtain(self._input_fn, self._epoch)
            self._kept = source if keep else None
            self._once = is_iterator(source)
        reader = open_reader(source, self._door, self._epoch, start)
        if reader.iterator is not None and reader.iterator is self._last_iterator:
            raise InputError(
                f"input: epoch {self._epoch} is needed and the iterator of the epoch before is used up. Let input_fn "
                "be a function that returns a fresh iterable each time it is called, or ask for one epoch"
            )
        return reader


def _checked(start: dict[str, Any]) -> dict[str, Any]:
    missing = [name for name in ("epoch", "element", "row") if name not in start]
    if missing:
        raise InputError(f"start: a position without {missing[0]!r} seen; the position of an earlier Batch wanted")
    return {"example": start["row"], **start}
