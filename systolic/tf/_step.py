"""One section of a computation as a function, and as a compiled Program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from systolic.target import Target
from systolic.tf._computation import Computation, Loop, Section
from systolic.tf._graph import GraphFunction, graph_function


def section_function(computation: Computation, section: Section, replicas: int | None) -> GraphFunction:
    """What the section computes, as a function of its placeholders.

    Outputs are its fetches, what goes to the outfeed and whether it does, and whether a loop that does not count goes on.

    Args:
        replicas: as for :func:`graph_function`.
    """
    looped = isinstance(section, Loop)
    carry = section.carry if isinstance(section, Loop) else [x for loop in computation.loops for x in loop.results]
    feeds = [p for p, _ in computation.arguments] + list(carry) + section.infeed
    if section.random is not None:
        feeds += [section.random.number, section.random.replica]
    fetches = [*section.fetches, *section.outfeed]
    if section.when is not None:
        fetches.append(section.when)
    if isinstance(section, Loop) and section.counter is None:
        fetches.append(section.again)
    return graph_function(fetches, feeds, name="step" if looped else "computation", replicas=replicas)


class Step:
    """A section as a Program that is compiled.

    Attributes:
        variables: those that it takes, without the one that counts its random numbers: shape and dtype by name.
        written: names of those that it changes, likewise.
    """

    def __init__(self, computation: Computation, section: Section, target: Target) -> None:
        self._function = section_function(computation, section, computation.replicas)
        self._scratch = () if section.random is None else (section.random.variable,)
        self.variables = {k: v for k, v in self._function.variables.items() if k not in self._scratch}
        self.written = [name for name in self._function.written if name not in self._scratch]
        self._run = self._function.program().compile(target).direct

    def run(self, held: dict[str, Any], given: Mapping[str, Any]) -> tuple[Sequence[Any], dict[str, Any]]:
        """Outputs, and the variables afterwards; those before are donated."""
        scratch = {name: np.zeros(3, np.int64) for name in self._scratch}
        outputs, after = self._run(held | scratch, {name: given[name] for name in self._function.inputs})
        for name in self._scratch:
            del after[name]
        return outputs, after
