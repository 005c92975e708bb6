"""Tracing without an error message that nobody reads.

Flax asks each value that it stores for its ``sharding``, to see whether it has one. A traced value has none, and JAX says
so with an AttributeError whose text it finds by walking through all operations traced so far: more than half of the time
to trace a ResNet-50, whose batch norms store their statistics. While a program is traced here, the text is shorter.

Where a JAX makes its tracers otherwise, tracing is only slower.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from systolic._private_jax import tracer_class

_lock = threading.Lock()
_depth = 0


@contextlib.contextmanager
def quick_trace() -> Iterator[None]:
    """Have ``tracer.sharding`` raise a plain AttributeError in the body; nests, and may be used by several threads."""
    global _depth
    tracer: Any = tracer_class()
    if tracer is None:
        yield
        return
    original = _Original.of(tracer)
    with _lock:
        _depth += 1
        if _depth == 1:
            tracer.sharding = property(_no_sharding)
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if _depth == 0:
                tracer.sharding = original


class _Original:
    """JAX's own property, remembered the first time."""

    _found: Any = None

    @classmethod
    def of(cls, tracer: type) -> Any:
        if cls._found is None:
            cls._found = tracer.__dict__.get("sharding")
        return cls._found


def _no_sharding(tracer: Any) -> Any:
    raise AttributeError(f"The 'sharding' attribute is not available on a {type(tracer).__name__}.")
