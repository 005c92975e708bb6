"""Compiled binaries to bytes and back (JAX's experimental ``serialize_executable`` stays behind this file).

The trees of the arguments and results are not stored: whoever loads a binary knows its Program.
"""

from __future__ import annotations

from typing import Any


def serialize(compiled: Any) -> bytes:
    """The backend's binary of a ``jax.stages.Compiled``."""
    from jax.experimental import serialize_executable

    payload, _, _ = serialize_executable.serialize(compiled)
    return payload
