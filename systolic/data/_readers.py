"""Readers: one epoch of a source as rows, read in pieces of any size, from any position.

Each reader has ``peek()`` (whether there is a first row; settles the spec), ``read(want)`` (at most ``want`` rows as a
list of arrays of shape [rows, ...], None at the end of the epoch), ``position()`` (what has been read, JSON-able) and
``close()``. Attribute ``rows_read`` counts the rows of the epoch up to here; ``iterator`` is what is being read, if
anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

from systolic._errors import InputError, SystolicError

from ._door import Door
from ._libraries import Stream, adapt, decode_state, encode_state, replay
from ._messages import beyond
from ._not_data import check_iterable
from ._shuffle import ShuffleReader
from ._sources import Arrays, Marked, Shuffled
from ._tree import is_in_memory

_STATE_EVERY = 16
"""Elements between two captures of an iterator's state: what a continued run reads again, against what they cost."""


class Reader(Protocol):
    rows_read: int
    iterator: Any

    def peek(self) -> bool: ...
    def whole(self, rows: int) -> list[np.ndarray] | None: ...
    def read(self, want: int) -> list[np.ndarray] | None: ...
    def position(self) -> dict[str, Any]: ...
    def close(self) -> None: ...


def open_reader(source: Any, door: Door, epoch: int, start: dict[str, Any] | None) -> Reader:
    """The reader of one epoch of whatever ``input_fn`` gave, at ``start`` (a reader's position) or the beginning."""
    if isinstance(source, Shuffled):
        return ShuffleReader(open_reader(source.source, door, epoch, None), source.buffer, source.seed, epoch, start)
    if isinstance(source, Marked):
        if door.batched is None:
            door.batched = source.batched
        return open_reader(source.source, door, epoch, start)
    if isinstance(source, Arrays):
        return ArrayReader(source, door, epoch, start)
    if is_in_memory(source):
        return ArrayReader(Arrays(source), door, epoch, start)
    stream = adapt(source, epoch)
    if stream is None:
        check_iterable(source)
        stream = Stream(replay(source))
    if door.batched is None:
        door.batched = stream.batched
    if stream.caution is not None:
        door.notices.give(stream.caution)
    return StreamReader(stream, door, epoch, start)


class ArrayReader:
    """Rows of arrays in memory: slices where the order is kept, one gather a piece where it is shuffled."""

    iterator = None

    def __init__(self, source: Arrays, door: Door, epoch: int, start: dict[str, Any] | None) -> None:
        self._arrays, self._rows, self._casts = door.admit_arrays(source.tree, epoch)
        self._door, self._epoch = door, epoch
        self._order = None
        if source.shuffle is not None:
            generator = np.random.Generator(np.random.Philox(key=[source.shuffle, epoch]))
            self._order = generator.permutation(self._rows)
        self._cast_any = any(cast is not None for cast in self._casts)
        self.rows_read = 0 if start is None else start["row"]
        if self.rows_read > self._rows:
            raise InputError(beyond(f"row {self.rows_read}", f"{self._rows} examples"))

    def peek(self) -> bool:
        return self.rows_read < self._rows

    def whole(self, rows: int) -> list[np.ndarray] | None:
        """The next ``rows`` rows, if so many are left."""
        return self.read(rows) if self.rows_read + rows <= self._rows else None

    def read(self, want: int) -> list[np.ndarray] | None:
        low = self.rows_read
        high = min(low + want, self._rows)
        if high == low:
            return None
        self.rows_read = high
        if self._order is None:
            order = None
            leaves = [array[low:high] for array in self._arrays]
            for leaf in leaves:
                leaf.flags.writeable = False  # a view of the user's own array
        else:
            order = self._order[low:high]
            leaves = [array.take(order, axis=0) for array in self._arrays]
        if self._cast_any:
            cast = self._door.cast
            leaves = [cast(i, leaves[i], self._casts[i], self._epoch, low, order) for i in range(len(leaves))]
        return leaves

    def position(self) -> dict[str, Any]:
        return {"epoch": self._epoch, "element": 0, "row": self.rows_read}

    def close(self) -> None:
        """Nothing is held open."""


class StreamReader:
    """Rows of an iterator of examples or batches."""

    def __init__(self, stream: Stream, door: Door, epoch: int, start: dict[str, Any] | None) -> None:
        self._door, self._epoch = door, epoch
        self._element = 0  # elements wholly read
        self._row = 0  # rows read of the element in hand
        self._rest: tuple[list[np.ndarray], int | None] | None = None  # the element in hand
        self._ended = False  # some iterators begin again when they are asked after their end
        self._state: tuple[int, Any] = (0, None)  # (element number, encoded state of the iterator just before it)
        self.rows_read = 0
        skip = 0 if start is None else start["element"]
        try:
            self.iterator = self._start(stream, skip, start)
        except StopIteration:
            raise InputError(beyond(f"element {skip}", "fewer elements")) from None
        except SystolicError:
            raise
        except Exception as error:
            raise self._raised(error, f"before element {skip}") from error
        self._has_state = hasattr(self.iterator, "get_state") and hasattr(self.iterator, "set_state")
        self._element = skip
        if start is not None:
            self.rows_read = start["example"] - start["row"]
            if start["row"]:
                self._skip_rows(start["row"])

    def _start(self, stream: Stream, skip: int, start: dict[str, Any] | None) -> Iterator[Any]:
        if start is None or "state" not in start:
            return stream.start(skip)
        iterator = stream.start(0)
        if not hasattr(iterator, "set_state"):
            return stream.start(skip)
        try:
            iterator.set_state(decode_state(start["state"]))
        except ValueError as error:  # Grain's DataLoader compares the repr of the data source, which may be an address
            self._door.notices.give(f"input: the saved state was refused, so the epoch is read again up to it: {error}")
            return stream.start(skip)
        self._state = start["state_element"], start["state"]
        for _ in range(self._state[0], skip):
            next(iterator)
        return iterator

    def _skip_rows(self, rows: int) -> None:
        if not self._fetch() or self._rest[1] is None or self._rest[1] < rows:
            raise InputError(beyond(f"row {rows} of element {self._element}", "no such row"))
        self._row = rows
        self.rows_read += rows

    def peek(self) -> bool:
        return self._rest is not None or self._fetch()

    def whole(self, rows: int) -> list[np.ndarray] | None:
        """The next element as it came, if it is just ``rows`` rows; None, and nothing is consumed, if it is not."""
        if self._rest is None and not self._fetch():
            return None
        leaves, seen = self._rest
        if seen != rows or self._row:
            return None
        self._rest = None
        self._element += 1
        self.rows_read += rows
        return leaves

    def read(self, want: int) -> list[np.ndarray] | None:
        if self._rest is None and not self._fetch():
            return None
        leaves, rows = self._rest
        if rows is None:
            return self._read_examples(want)
        low = self._row
        if rows - low <= want:
            self._finish()
            self.rows_read += rows - low
            return leaves if low == 0 else [leaf[low:] for leaf in leaves]
        self._row = low + want
        self.rows_read += want
        return [leaf[low : low + want] for leaf in leaves]

    def position(self) -> dict[str, Any]:
        position = {
            "epoch": self._epoch,
            "element": self._element,
            "row": self._row,
            "example": self.rows_read,
        }
        if self._state[1] is not None:
            position["state_element"], position["state"] = self._state
        return position

    def close(self) -> None:
        close = getattr(self.iterator, "close", None)
        if close is None:
            return
        try:
            close()
        except ValueError as error:
            if "already executing" not in str(error):  # by a thread that waits in it and cannot be ended
                raise

    def _read_examples(self, want: int) -> list[np.ndarray] | None:
        out = [np.empty((want, *spec.shape), spec.dtype_host) for spec in self._door.specs]
        rows = 0
        while rows < want and (self._rest is not None or self._fetch()):
            for array, leaf in zip(out, self._rest[0]):
                array[rows] = leaf
            rows += 1
            self.rows_read += 1
            self._finish()
        return out if rows == want else [array[:rows] for array in out]

    def _finish(self) -> None:
        self._rest = None
        self._row = 0
        self._element += 1

    def _fetch(self) -> bool:
        """Take the next element that has rows into hand; False at the end."""
        while not self._ended:
            if self._has_state and self._element - self._state[0] >= _STATE_EVERY:
                self._state = (self._element, encode_state(self.iterator.get_state()))
            try:
                element = next(self.iterator)
            except StopIteration:
                self._ended = True
                return False
            except SystolicError:
                raise
            except Exception as error:
                raise self._raised(error, f"at element {self._element}") from error
            leaves, rows = self._door.admit(element, self._epoch, self.rows_read)
            if rows != 0:
                self._rest = (leaves if rows is None else [_own(leaf) for leaf in leaves]), rows
                return True
            self._element += 1
        return False

    def _raised(self, error: Exception, place: str) -> InputError:
        epoch = f" of epoch {self._epoch}" if self._epoch else ""
        return InputError(
            f"input: {type(error).__name__} raised {place}{epoch}, after {self.rows_read} examples: {error}. The "
            "error is in the code that yields the data; its own traceback comes first"
        )


def _own(leaf: Any) -> Any:
    """A copy of what the source could still write to: it may fill the same array anew while the batch is in use."""
    return leaf.copy() if isinstance(leaf, np.ndarray) and leaf.flags.writeable else leaf
