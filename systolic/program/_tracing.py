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
    """Trace a Program in the body: fast, with errors at the user's line, and with its mesh for ``jax.shard_map``.

    Args:
        mesh: a ``jax.sharding.Mesh``, or an ``AbstractMesh`` of devices that are not there.
    """
    abstract = mesh if isinstance(mesh, jax.sharding.AbstractMesh) else mesh.abstract_mesh
    with quick_trace(), jax.sharding.use_abstract_mesh(abstract), explained_trace(name, argument_names, args):
        yield
