"""What surrounds the trace of a Program, for attached and described targets alike."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from systolic.program._quick_trace import quick_trace
from systolic.program._traced_errors import explained_trace


@contextlib.contextmanager
def tracing(name: str, argument_names: Sequence[str], args: Sequence[Any], mesh: Any) -> Iterator[None]:
    """Trace a Program in the body: fast, with errors at the user's line, and :func:`on_mesh`."""
    with quick_trace(), on_mesh(mesh), explained_trace(name, argument_names, args):
        yield


def on_mesh(mesh: Any) -> Any:
    """A context for what traces or lowers a Program: ``jax.shard_map`` finds its mesh.

    Args:
        mesh: a ``jax.sharding.Mesh``, or an ``AbstractMesh`` of devices that are not there.
    """
    return jax.sharding.use_abstract_mesh(mesh if isinstance(mesh, jax.sharding.AbstractMesh) else mesh.abstract_mesh)
