"""Take what a graph has for devices, in place of running it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from systolic.tf._computation import Section, recorded
from systolic.tf._graph import GraphFunction
from systolic.tf._step import section_function

_takers: list[Callable[[GraphFunction], None]] = []


class Reached(BaseException):
    """A graph with computations is complete, and was taken: nothing that the script catches."""


@contextlib.contextmanager
def collecting(take: Callable[[GraphFunction], None]) -> Iterator[None]:
    """In the body, a session for a graph with computations gives their functions to ``take``, and is not made."""
    _takers.append(take)
    try:
        yield
    finally:
        _takers.pop()


def collect(graph: Any) -> None:
    """Give the functions of a graph to whoever collects.

    Raises:
        Reached: somebody does, and there are some.
    """
    found = recorded(graph) if _takers else None
    if found is None or not found.computations:
        return
    for computation in found.computations.values():
        replicas = None if computation.replicas == 1 else computation.replicas
        sections: list[Section] = [*computation.loops] or [computation.rest]
        for section in sections:
            _takers[-1](section_function(computation, section, replicas))
    raise Reached
