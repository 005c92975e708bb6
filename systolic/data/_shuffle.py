"""A shuffle buffer for streams.

Rows leave in blocks of fixed size, so that the order is a function of the row number alone and a block costs one
gather, whatever pieces the caller asks for. A block is drawn without replacement from the full buffer, and its places
are refilled with the next rows of the stream.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from systolic._errors import InputError

from ._messages import beyond

_LARGEST_BLOCK = 256


class ShuffleReader:
    """Rows of another reader in shuffled order; continues by reading the epoch again up to the position."""

    def __init__(self, reader: Any, buffer: int, seed: int, epoch: int, start: dict[str, Any] | None) -> None:
        self._reader, self._capacity, self._epoch = reader, buffer, epoch
        self._block_rows = max(1, min(_LARGEST_BLOCK, buffer // 4))
        self._generator = np.random.Generator(np.random.Philox(key=[seed, epoch]))
        self._buffer: list[np.ndarray] | None = None
        self._ended = False
        self._block: list[np.ndarray] | None = None
        self._row = 0
        self.rows_read = 0
        remaining = 0 if start is None else start["row"]
        while remaining:
            piece = self.read(remaining)
            if piece is None:
                raise InputError(beyond(f"row {start['row']}", f"{self.rows_read} examples"))
            remaining -= len(piece[0])

    @property
    def iterator(self) -> Any:
        return self._reader.iterator

    def peek(self) -> bool:
        return self._block is not None or self._next_block()

    def whole(self, rows: int) -> None:
        """Rows are drawn one by one: no element is passed on as it came."""

    def read(self, want: int) -> list[np.ndarray] | None:
        if self._block is None and not self._next_block():
            return None
        low = self._row
        high = min(low + want, len(self._block[0]))
        piece = [leaf[low:high] for leaf in self._block]
        self._row = high
        if high == len(self._block[0]):
            self._block = None
        self.rows_read += high - low
        return piece

    def position(self) -> dict[str, Any]:
        return {"epoch": self._epoch, "element": 0, "row": self.rows_read}

    def close(self) -> None:
        self._reader.close()

    def _next_block(self) -> bool:
        if self._buffer is None:
            self._buffer = self._gather(self._capacity)
        if self._buffer is None:
            return False
        refill = None if self._ended else self._gather(self._block_rows)
        held = len(self._buffer[0])
        drawn = 0 if refill is None else len(refill[0])
        self._row = 0
        if drawn == 0:  # the stream is over: the whole buffer leaves, in random order
            order = self._generator.permutation(held)
            self._block, self._buffer = [leaf[order] for leaf in self._buffer], None
            self._ended = True
            self._capacity = 0
            return True
        places = self._generator.choice(held, drawn, replace=False)
        self._block = [leaf[places] for leaf in self._buffer]
        for leaf, new in zip(self._buffer, refill):
            leaf[places] = new
        return True

    def _gather(self, want: int) -> list[np.ndarray] | None:
        """Up to ``want`` rows of the stream in arrays of their own; fewer only at its end, None if there are none."""
        out, rows = None, 0
        while rows < want and not self._ended:
            piece = self._reader.read(want - rows)
            if piece is None:
                self._ended = True
                break
            if out is None:
                out = [np.empty((want, *leaf.shape[1:]), leaf.dtype) for leaf in piece]
            for array, leaf in zip(out, piece):
                array[rows : rows + len(leaf)] = leaf
            rows += len(piece[0])
        return None if out is None else [array[:rows] for array in out]
