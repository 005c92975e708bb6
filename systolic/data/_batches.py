"""Static batches from whatever an ``input_fn`` gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from systolic._errors import InputError
from systolic._log import Notices

from ._batch import Batch, Group
from ._door import Door
from ._epochs import Epochs
from ._spec import ElementSpec

TAILS = ("carry", "drop", "pad")


class Batches:
    """Iterator over static batches; nothing is read before the first ``next``, `next_group` or `peek`.

    Args:
        input_fn: data, or a callable that gives data for each epoch (called with ``epoch`` if it has a parameter of
            that name): an array or a dict or tuple of arrays (one row an example), `arrays`, an iterable or generator
            of examples or of batches of any size, a Grain, ``tf.data`` or torch data set. A pair is (features, labels).
            What a callable returns is asked for anew each epoch, except data in memory where it takes no ``epoch``.
        batch_size: rows of every batch.
        labels_expected: True: an element without labels is an error. False: labels are dropped. None: as they come.
        tail: what becomes of the rows at an epoch's end that do not fill a batch: "carry": they begin the next epoch's
            first batch (at the end of the last epoch they are dropped, with a notice); "drop"; "pad": the batch is
            filled with copies of its own first row, and ``mask`` tells.
        epochs: number of epochs; None repeats without end.
        start: a `Batch.position` of an earlier run; batches go on after it, bit for bit. At once for data in memory,
            by ``set_state`` for Grain, else by reading the epoch again, which must then come in the same order.
        stack: batches in a `Group`; with 1, iterating gives a `Batch`, else groups.
        spec: what examples look like, from an earlier run; None learns it from the first element. With it, ranks tell
            whether elements are examples or batches.
        notices: where casts and readings are told once.
        size_name: what the caller's own user knows ``batch_size`` as, for messages.

    Raises:
        InputError: from the iteration, where the data is not what it should be; names feature, shape and example.

    Example:
        >>> import numpy as np
        >>> data = {"x": np.arange(5, dtype=np.float32)}
        >>> batches = Batches(data, batch_size=2, tail="pad", epochs=1)
        >>> [(batch.features["x"].tolist(), batch.count) for batch in batches]
        [([0.0, 1.0], 2), ([2.0, 3.0], 2), ([4.0, 4.0], 1)]
    """

    def __init__(
        self,
        input_fn: Any,
        batch_size: int,
        *,
        labels_expected: bool | None = None,
        tail: str = "carry",
        epochs: int | None = None,
        start: dict[str, Any] | None = None,
        stack: int = 1,
        spec: ElementSpec | None = None,
        notices: Notices | None = None,
        size_name: str = "batch_size",
    ) -> None:
        for name, value in ((size_name, batch_size), ("stack", stack), ("epochs", 1 if epochs is None else epochs)):
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
                raise InputError(f"{name}: {value!r} seen, a positive integer wanted")
        if tail not in TAILS:
            raise InputError(f"tail: {tail!r} seen, one of {', '.join(map(repr, TAILS))} wanted")
        self.batch_size, self.stack, self.tail, self.epochs = int(batch_size), int(stack), tail, epochs
        self._size_name = size_name
        self._notices = Notices() if notices is None else notices
        self._door = Door(spec, labels_expected, self._notices)
        self._epochs = Epochs(input_fn, self._door, epochs, start)
        self._made = start is not None  # whether there was ever a batch
        self._failure: Exception | None = None
        self._all_real = np.ones(self.batch_size, bool)
        self._all_real.flags.writeable = False

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Batch | Group:
        if self.stack > 1:
            return self.next_group(self.stack)
        batch = self._whole()
        if batch is not None:
            return batch
        leaves, mask, filled = self._collect(1, 1)
        features, labels, host = self._door.unflatten(leaves)
        count = filled if mask is None else int(mask.sum())
        if host is not None:
            host = {name: column[:count] for name, column in host.items()}
        return Batch(features, labels, mask, host, count, self._epochs.position())

    def _whole(self) -> Batch | None:
        """The next batch where it lies ready, the common case, at a third of what the general way costs; else None."""
        epochs, door = self._epochs, self._door
        reader = epochs.reader
        if reader is None or epochs.over or door.host or self._failure is not None:
            return None
        try:
            leaves = reader.whole(self.batch_size)
        except Exception as error:
            self._failure = error
            raise
        if leaves is None:
            return None
        self._made = True
        features, labels, _ = door.unflatten(leaves)
        mask = None if self.tail != "pad" else self._all_real
        return Batch(features, labels, mask, None, self.batch_size, reader.position())

    def next_group(self, k: int) -> Group:
        """The next ``k`` batches as a `Group` whose leading size is always ``stack``.

        Raises StopIteration at the end of the data; fewer than ``k`` batches (see ``count``) just before it.
        """
        if not 1 <= k <= self.stack:
            raise InputError(f"k: {k} seen, a number of batches from 1 to stack={self.stack} wanted")
        leaves, mask, filled = self._collect(k, self.stack)
        lead = (self.stack, self.batch_size)
        for i, spec in enumerate(self._door.specs):
            if not spec.host_only:
                leaves[i] = leaves[i].reshape(lead + leaves[i].shape[1:])
        features, labels, host = self._door.unflatten(leaves)
        rows = filled if mask is None else int(mask.sum())
        if host is not None:
            real = slice(filled) if mask is None else mask
            host = {name: column[real] for name, column in host.items()}
        mask = None if mask is None else mask.reshape(lead)
        return Group(features, labels, mask, host, filled // self.batch_size, self.position, rows)

    def peek(self) -> ElementSpec:
        """The spec of one example, from the first element, which is not lost."""
        if self._door.spec is None and not self._guard(self._epochs.ready):
            raise InputError("input: the data is over, no element is left to look at. Give a fresh source")
        return self._door.spec

    @property
    def spec(self) -> ElementSpec:
        """The same as `peek`."""
        return self.peek()

    @property
    def position(self) -> dict[str, Any]:
        """What has been consumed by the batches given out so far; JSON-able."""
        return self._epochs.position()

    def close(self) -> None:
        """Close the source (a generator's ``finally`` runs); the iteration is over."""
        self._epochs.close()

    def _guard(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call, and remember a failure: iterating again after one must not look like the end of the data."""
        if self._failure is not None:
            raise self._failure
        try:
            return function(*args)
        except Exception as error:
            self._failure = error
            raise

    def _collect(self, k: int, stack: int) -> tuple[list[np.ndarray], np.ndarray | None, int]:
        """Leaves of [stack * batch_size, ...] rows, mask, and the number of rows in the batches that were filled."""
        found = self._guard(self._fill, k * self.batch_size, stack * self.batch_size)
        if not found[2]:
            raise StopIteration
        return found

    def _fill(self, want: int, size: int) -> tuple[list[np.ndarray], np.ndarray | None, int]:
        out: list[np.ndarray] | None = None
        padding: list[tuple[int, int]] = []
        filled = 0
        epochs = self._epochs
        while filled < want and not epochs.over and (epochs.reader is not None or epochs.ready()):
            piece = epochs.reader.read(want - filled)
            if piece is None:
                filled = self._end_epoch(out, filled, padding)
                continue
            rows = len(piece[0])
            if rows == size:  # one piece is the whole group: no copy
                self._made = True
                return piece, None if self.tail != "pad" else self._mask(size, size, padding), size
            if out is None:
                out = [np.empty((size, *leaf.shape[1:]), leaf.dtype) for leaf in piece]
            for array, leaf in zip(out, piece):
                array[filled : filled + rows] = leaf
            filled += rows
        filled = self._cut_tail(filled)
        if filled and filled < size:
            batch = self.batch_size
            for array in out:
                array[filled:].reshape(-1, batch, *array.shape[1:])[...] = array[:batch]
        self._made = self._made or filled > 0
        return out, self._mask(size, filled, padding), filled

    def _mask(self, size: int, filled: int, padding: list[tuple[int, int]]) -> np.ndarray | None:
        if self.tail != "pad":
            return None  # every row is real
        if size == filled == self.batch_size and not padding:
            return self._all_real
        mask = np.zeros(size, bool)
        mask[:filled] = True
        for low, high in padding:
            mask[low:high] = False
        return mask

    def _end_epoch(self, out: list[np.ndarray] | None, filled: int, padding: list[tuple[int, int]]) -> int:
        """Deal with the tail of the epoch just read and go to the next; returns the rows that are filled now."""
        tail = filled % self.batch_size
        if tail and self.tail == "pad":
            first, end = filled - tail, filled - tail + self.batch_size
            for array in out:
                array[filled:end] = array[first]
            padding.append((filled, end))
            filled = end
        elif self.tail == "drop":
            filled -= tail
            if self._epochs.reader.rows_read < self.batch_size:
                raise InputError(
                    f"{self._size_name}: {self.batch_size} seen, and an epoch has {self._epochs.reader.rows_read} examples, so "
                    'that with tail="drop" there would never be a batch. Use a smaller batch, or tail="carry"'
                )
        self._epochs.advance()
        return filled

    def _cut_tail(self, filled: int) -> int:
        """At the end of all data, what does not fill a batch is left out, but never silently all of it."""
        tail = filled % self.batch_size
        if not tail:
            return filled
        if not self._made and filled == tail:
            raise InputError(
                f"{self._size_name}: {self.batch_size} seen, and the data has {filled} examples in all, less than one "
                'batch. Use a smaller batch, more epochs, or tail="pad"'
            )
        self._notices.give(f"input: the last {tail} examples do not fill a batch of {self.batch_size} and are left out")
        return filled - tail
