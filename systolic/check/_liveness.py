"""Which buffers are live when: a walk over the schedule, without running it.

The model: arguments stay for the whole run; a temporary lives from the instruction that makes it to the last that reads
it; a result that reuses a donated argument, and the state that a loop carries, lie in buffers that are there already.
An instruction that the compiler can do in place takes over an operand that nobody reads afterwards. A loop adds the
peak of its body to what is live around it.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable

from systolic.check._hlo import Computation, Instruction, Module, called_by
from systolic.check._points_to import Buffer, PointsTo, in_hbm, sharing

_GRAIN = 512  # bytes: the allocator's step
_NAMES_ONLY = frozenset({"tuple", "get-tuple-element", "bitcast", "parameter", "constant", "add-dependency"})
_BODIES = frozenset({"while", "conditional", "call", "async-start", "call-start"})


@dataclasses.dataclass(frozen=True)
class LiveBuffer:
    """A buffer that is live at the peak.

    Attributes:
        name: the HLO instruction that made it.
        shape: its shape, without layout.
        padded_bytes: bytes that it occupies.
        unpadded_bytes: bytes of its values.
        op_name: operation of the user's program.
        source: ``file:line`` of the user's code.
        kind: ``"temporary"`` or ``"output"``.
    """

    name: str
    shape: str
    padded_bytes: int
    unpadded_bytes: int
    op_name: str
    source: str
    kind: str


@dataclasses.dataclass(frozen=True)
class Liveness:
    """What a schedule keeps in device memory beside its arguments.

    Attributes:
        peak_bytes: most that is live at once.
        at_peak: the buffers that are live then, largest first.
        timeline: bytes live at each instruction of the entry computation.
        temporary_bytes: most that is live at once of buffers that are not results.
        output_bytes: results that do not reuse an argument's buffer.
    """

    peak_bytes: int
    at_peak: tuple[LiveBuffer, ...]
    timeline: tuple[int, ...]
    temporary_bytes: int
    output_bytes: int


def walk(module: Module) -> Liveness:
    """Walk the schedule of the entry computation."""
    entry = module.entry_computation
    aliased = set(module.aliased_outputs())
    return _Walker(module).walk(entry, free_results=aliased, is_entry=True)


class _Walker:
    def __init__(self, module: Module) -> None:
        self.module = module
        self._inner: dict[str, Liveness] = {}

    def walk(self, computation: Computation, free_results: set[int] | None, is_entry: bool) -> Liveness:
        """``free_results``: positions of the result that lie in the caller's buffers; ``None``: all of them."""
        points = PointsTo(computation)
        root = points.places[computation.root.name]
        last = _last_uses(computation, points)
        end = len(computation.instructions)
        results: set[Buffer] = set()
        outside: set[Buffer] = set()
        for position, place in enumerate(root):
            free = free_results is None or position in free_results
            (outside if free else results).update(place)
            last |= dict.fromkeys(place, end)
        given = {b for i in computation.instructions if i.opcode in ("parameter",) for b in _own(points, i)}
        last |= dict.fromkeys(given, end)
        groups = _share(computation, points, last)
        return self._sum(computation, points, groups, last, given | outside, results, is_entry)

    def _sum(
        self,
        computation: Computation,
        points: PointsTo,
        groups: _Groups,
        last: dict[Buffer, int],
        outside: set[Buffer],
        results: set[Buffer],
        is_entry: bool,
    ) -> Liveness:
        order = {instruction.name: at for at, instruction in enumerate(computation.instructions)}
        members: dict[Buffer, list[Buffer]] = defaultdict(list)
        for buffer, array in points.buffers.items():
            if in_hbm(array):
                members[groups.find(buffer)].append(buffer)
        spans: list[tuple[int, int, int, Buffer, bool]] = []  # start, end, bytes, largest member, whether a result
        for group in members.values():
            if any(buffer in outside for buffer in group):
                continue
            largest = max(group, key=lambda b: points.buffers[b].padded_bytes)
            size = _rounded(points.buffers[largest].padded_bytes)
            start = min(order[name] for name, _ in group)
            stop = max(last.get(buffer, order[buffer[0]]) for buffer in group)
            spans.append((start, stop, size, largest, any(buffer in results for buffer in group)))
        length = len(computation.instructions)
        change, temporary = [0] * (length + 2), [0] * (length + 2)
        for start, stop, size, _, is_result in spans:
            for counts in (change,) if is_result else (change, temporary):
                counts[start] += size
                counts[min(stop, length) + 1] -= size
        inner = {at: self._body(i) for at, i in enumerate(computation.instructions) if i.opcode in _BODIES}
        live = held = 0
        timeline, temporaries = [], []
        for at in range(length):
            live, held = live + change[at], held + temporary[at]
            extra = inner[at].peak_bytes if at in inner else 0
            timeline.append(live + extra)
            temporaries.append(held + extra)
        peak_at = max(range(length), key=timeline.__getitem__)
        at_peak = [
            self._describe(computation.by_name[largest[0]], points, largest, is_result and is_entry)
            for start, stop, _, largest, is_result in spans
            if start <= peak_at <= stop
        ]
        if peak_at in inner:
            at_peak += inner[peak_at].at_peak
        return Liveness(
            peak_bytes=timeline[peak_at],
            at_peak=tuple(sorted(at_peak, key=lambda b: -b.padded_bytes)),
            timeline=tuple(timeline) if is_entry else (),
            temporary_bytes=max(temporaries),
            output_bytes=sum(size for *_, size, _, is_result in spans if is_result),
        )

    def _body(self, instruction: Instruction) -> Liveness:
        """The heaviest of the computations that an instruction runs; their results lie in the caller's buffers."""
        found = []
        for callee in called_by(self.module, instruction):
            if callee.name not in self._inner:
                self._inner[callee.name] = self.walk(callee, free_results=None, is_entry=False)
            found.append(self._inner[callee.name])
        return max(found, key=lambda inner: inner.peak_bytes, default=Liveness(0, (), (), 0, 0))

    def _describe(self, maker: Instruction, points: PointsTo, buffer: Buffer, is_result: bool) -> LiveBuffer:
        array = points.buffers[buffer]
        return LiveBuffer(
            name=maker.name,
            shape=str(array),
            padded_bytes=array.padded_bytes,
            unpadded_bytes=array.unpadded_bytes,
            op_name=maker.op_name,
            source=self.module.source(maker),
            kind="output" if is_result else "temporary",
        )


class _Groups:
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


def _own(points: PointsTo, instruction: Instruction) -> list[Buffer]:
    return [buffer for place in points.places[instruction.name] for buffer in place]


def _last_uses(computation: Computation, points: PointsTo) -> dict[Buffer, int]:
    last: dict[Buffer, int] = {}
    for at, instruction in enumerate(computation.instructions):
        if instruction.opcode in _NAMES_ONLY:
            continue
        for places in points.operand_places(instruction):
            for place in places:
                for buffer in place:
                    last[buffer] = at
    return last


def _share(computation: Computation, points: PointsTo, last: dict[Buffer, int]) -> _Groups:
    """Put results where operands lay that nobody reads afterwards; extends ``last`` accordingly."""
    groups = _Groups(points.buffers)
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


def _rounded(size: int) -> int:
    return -(-size // _GRAIN) * _GRAIN
