"""From when to when each piece of memory is in use, and by how many buffers in turn."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from systolic.check._hlo import Computation, Instruction
from systolic.check._points_to import Buffer, PointsTo, in_hbm, sharing
from systolic.check._shape import Array

_GRAIN = 512  # bytes: the allocator's step


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Span:
    """A piece of device memory.

    Attributes:
        start: step of the schedule that makes it.
        stop: last step that reads it.
        size: bytes.
        maker: instruction that made the largest array that lies in it.
        array: that array.
        is_result: whether it outlives the computation.
    """

    start: int
    stop: int
    size: int
    maker: Instruction
    array: Array
    is_result: bool

    def meets(self, other: Span) -> bool:
        """Whether both are in use at some instruction."""
        return self.start <= other.stop and other.start <= self.stop


def spans_of(
    computation: Computation,
    points: PointsTo,
    groups: Groups,
    last: Mapping[Buffer, int],
    outside: set[Buffer],
    results: set[Buffer],
) -> list[Span]:
    """The spans of a computation, without those that lie in buffers from ``outside``."""
    order = {instruction.name: at for at, instruction in enumerate(computation.instructions)}
    members: dict[Buffer, list[Buffer]] = defaultdict(list)
    for buffer, array in points.buffers.items():
        if in_hbm(array):
            members[groups.find(buffer)].append(buffer)
    spans = []
    for group in members.values():
        if any(buffer in outside for buffer in group):
            continue
        largest = max(group, key=lambda b: points.buffers[b].padded_bytes)
        spans.append(
            Span(
                start=min(order[name] for name, _ in group),
                stop=max(last.get(buffer, order[buffer[0]]) for buffer in group),
                size=-(-points.buffers[largest].padded_bytes // _GRAIN) * _GRAIN,
                maker=computation.by_name[largest[0]],
                array=points.buffers[largest],
                is_result=any(buffer in results for buffer in group),
            )
        )
    return spans


def lend(temporaries: Iterable[Span], results: Sequence[Span]) -> list[Span]:
    """The temporaries that need memory of their own: a result lends its own until it is made, the largest first."""
    tenants: dict[Span, list[Span]] = {result: [result] for result in sorted(results, key=lambda r: r.size)}
    out = []
    for span in sorted(temporaries, key=lambda span: -span.size):
        for result, held in tenants.items():
            if span.size <= result.size and not any(span.meets(other) for other in held):
                held.append(span)
                break
        else:
            out.append(span)
    return out


class Groups:
    """Buffers that lie in one place (union-find)."""

    def __init__(self, buffers: Iterable[Buffer]) -> None:
        self._parent = {buffer: buffer for buffer in buffers}

    def find(self, buffer: Buffer) -> Buffer:
        while self._parent[buffer] != buffer:
            self._parent[buffer] = self._parent[self._parent[buffer]]
            buffer = self._parent[buffer]
        return buffer

    def join(self, a: Buffer, b: Buffer) -> None:
        self._parent[self.find(a)] = self.find(b)


def share(computation: Computation, points: PointsTo, last: dict[Buffer, int]) -> Groups:
    """Put results where operands lay that nobody reads afterwards; extends ``last`` accordingly."""
    groups = Groups(points.buffers)
    until: dict[Buffer, int] = dict(last)  # by group
    for at, instruction in enumerate(computation.instructions):
        taken: set[Buffer] = set()
        for place, position, must in sharing(instruction, points.operand_places(instruction)):
            result = (instruction.name, position)
            if len(place) != 1 or result not in points.buffers or result in taken:
                continue
            (source,) = place
            old = groups.find(source)
            size, wanted = points.buffers[source].padded_bytes, points.buffers[result].padded_bytes
            if not must and (until.get(old, at) > at or size != wanted or old in taken):
                continue
            if points.buffers[source].space != points.buffers[result].space:
                continue
            ends = max(until.get(old, at), last.get(result, at))
            groups.join(result, source)
            taken |= {result, old}
            until[groups.find(source)] = ends
    return groups
