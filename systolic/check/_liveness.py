"""Which buffers are live when: a walk over the schedule, without running it.

The model: arguments and results have their memory for the whole run; a temporary lives from the instruction that makes
it to the last that reads it, in the memory of a result where that is not needed yet; a result that reuses a donated
argument, and the state that a loop carries, lie in buffers that are there already.
An instruction that the compiler can do in place takes over an operand that nobody reads afterwards. The body of a loop
stands in the sequence once, where the loop does.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable

from systolic.check._hlo import Computation, Instruction, Module, called_by
from systolic.check._points_to import Buffer, PointsTo
from systolic.check._spans import Span, lend, share, spans_of

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
        timeline: bytes live at each step of the schedule; the body of a loop stands in it once.
        temporary_bytes: most that is live at once of buffers that are not results.
        output_bytes: results that do not reuse an argument's buffer.
    """

    peak_bytes: int
    at_peak: tuple[LiveBuffer, ...]
    timeline: tuple[int, ...]
    temporary_bytes: int
    output_bytes: int


def walk(module: Module) -> Liveness:
    """Walk the schedule of the entry computation and of all that it runs."""
    walker = _Walker(module)
    walker.visit(module.entry_computation, set(module.aliased_outputs()))
    results = [span for span in walker.spans if span.is_result]
    # Only the entry computation's own temporaries are lent the memory of results; the compiler does no more either.
    temporaries = (
        lend([s for s in walker.spans[walker.inner :] if not s.is_result], results) + walker.spans[: walker.inner]
    )
    output_bytes = sum(span.size for span in results)
    live = _live(temporaries, walker.steps)
    peak_at = max(range(walker.steps), key=live.__getitem__)
    at_peak = [_describe(module, span) for span in results]
    at_peak += [_describe(module, span) for span in temporaries if span.start <= peak_at <= span.stop]
    return Liveness(
        peak_bytes=output_bytes + live[peak_at],
        at_peak=tuple(sorted(at_peak, key=lambda buffer: -buffer.padded_bytes)),
        timeline=tuple(output_bytes + held for held in live),
        temporary_bytes=live[peak_at],
        output_bytes=output_bytes,
    )


class _Walker:
    """Lays the computations out in one sequence of steps, each body where it is called, and collects the spans."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.spans: list[Span] = []
        self.steps = 0
        self.inner = 0  # how many of the spans are from computations inside the one that was visited last

    def visit(self, computation: Computation, free_results: set[int] | None) -> None:
        """``free_results``: positions of the result that lie in the caller's buffers; ``None``: all of them."""
        points = PointsTo(computation)
        last = _last_uses(computation, points)
        end = len(computation.instructions) - 1
        results: set[Buffer] = set()
        outside = {b for i in computation.instructions if i.opcode == "parameter" for b in _own(points, i)}
        last |= dict.fromkeys(outside, end)
        for position, place in enumerate(points.places[computation.root.name]):
            free = free_results is None or position in free_results
            (outside if free else results).update(place)
            last |= dict.fromkeys(place, end)
        spans = spans_of(computation, points, share(computation, points, last), last, outside, results)
        begins, ends = [], []
        for instruction in computation.instructions:
            begins.append(self.steps)
            self.steps += 1
            if instruction.opcode in _BODIES:
                for callee in called_by(self.module, instruction):
                    self.visit(callee, None)
            ends.append(self.steps - 1)
        self.inner = len(self.spans)
        self.spans += [dataclasses.replace(s, start=begins[s.start], stop=ends[min(s.stop, end)]) for s in spans]


def _describe(module: Module, span: Span) -> LiveBuffer:
    return LiveBuffer(
        name=span.maker.name,
        shape=str(span.array),
        padded_bytes=span.array.padded_bytes,
        unpadded_bytes=span.array.unpadded_bytes,
        op_name=span.maker.op_name,
        source=module.source(span.maker),
        kind="output" if span.is_result else "temporary",
    )


def _live(spans: Iterable[Span], steps: int) -> list[int]:
    """Bytes live at each step."""
    change = [0] * (steps + 1)
    for span in spans:
        change[span.start] += span.size
        change[span.stop + 1] -= span.size
    return list(itertools.accumulate(change[:steps]))


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
