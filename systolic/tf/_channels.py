"""Queues between the host's part of a graph and its devices: infeed, outfeed, arguments and results.

They are TensorFlow's own queues: to wait at one holds no thread, and closing the session ends the wait.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from systolic.tf._tensorflow import tensorflow

_AHEAD = 4  # batches that wait in an infeed
_UNBOUNDED = -1


@dataclasses.dataclass(frozen=True, eq=False)
class Channel:
    """One queue, with the operations of the side that runs outside of the graph; ``size`` is that of the queue now."""

    queue: Any
    placeholders: tuple[Any, ...]
    put: Any
    taken: tuple[Any, ...]
    size: Any
    close: Any

    @classmethod
    def make(cls, name: str, dtypes: Sequence[Any], shapes: Sequence[Any], bounded: bool = False) -> Channel:
        """A queue of tuples of tensors in the current graph, whatever scope the caller is in."""
        tf = tensorflow()
        tf1 = tf.compat.v1
        shapes = [tf.TensorShape(shape) for shape in shapes]
        static = all(shape.is_fully_defined() for shape in shapes)  # where not, who takes them is told
        with tf.init_scope(), tf1.device(None):
            capacity = _AHEAD if bounded else _UNBOUNDED
            queue = tf.queue.FIFOQueue(capacity, list(dtypes), shapes if static else None, name=name)
            placeholders = tuple(tf1.placeholder(d, s, name=f"{name}_put") for d, s in zip(dtypes, shapes, strict=True))
            taken = queue.dequeue(name=f"{name}_take")
            return cls(
                queue,
                placeholders,
                queue.enqueue(placeholders),
                (taken,) if len(shapes) == 1 else tuple(taken),
                queue.size(),
                queue.close(cancel_pending_enqueues=True),
            )

    def dequeue(self) -> list[Any]:
        """Tensors of a new operation that takes one tuple."""
        taken = self.queue.dequeue()
        return list(taken) if isinstance(taken, (list, tuple)) else [taken]
