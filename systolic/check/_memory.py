"""Device memory of a compiled program: what it takes, what it wastes, and against what there is."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from systolic.check._hlo import Module
from systolic.check._liveness import LiveBuffer, Liveness
from systolic.program import MemoryStats


@dataclasses.dataclass(frozen=True)
class ArgumentMemory:
    """One array that a program is given, on one device.

    Attributes:
        path: of the leaf, such as ``state/params/conv1/kernel``.
        shape: on one device.
        padded_bytes: bytes that it occupies.
        unpadded_bytes: bytes of its values.
        donated: whether a result reuses its buffer.
    """

    path: str
    shape: str
    padded_bytes: int
    unpadded_bytes: int
    donated: bool


@dataclasses.dataclass(frozen=True)
class PaddedTensor:
    """A tensor of which a part holds nothing, because its layout rounds sizes up to tiles."""

    name: str
    shape: str
    padded_bytes: int
    unpadded_bytes: int
    source: str

    @property
    def waste(self) -> int:
        """Bytes that hold nothing."""
        return self.padded_bytes - self.unpadded_bytes

    @property
    def factor(self) -> float:
        """How many times larger it is than its values."""
        return self.padded_bytes / self.unpadded_bytes if self.unpadded_bytes else 1.0


@dataclasses.dataclass(frozen=True)
class MemoryReport:
    """Bytes per device.

    Attributes:
        capacity: of a device, usable by programs; ``None`` where it is not known.
        arguments: what the program is given.
        outputs: results, those in donated buffers included.
        aliased: results in donated buffers.
        temporaries: what it needs in between.
        code: its instructions; 0 where none were generated.
        peak: most that is live at once, arguments included.
        estimated: whether the numbers are from a walk over the schedule instead of the compiler's allocator.
        at_peak: temporaries and results that are live at the peak, largest first.
        inputs: the arguments, largest first.
        padding: tensors with the most waste, arguments and buffers at the peak together.
        timeline: bytes live at each step of the schedule, arguments included.
    """

    capacity: int | None
    arguments: int
    outputs: int
    aliased: int
    temporaries: int
    code: int
    peak: int
    estimated: bool
    at_peak: tuple[LiveBuffer, ...]
    inputs: tuple[ArgumentMemory, ...]
    padding: tuple[PaddedTensor, ...]
    timeline: tuple[int, ...]

    @property
    def needed(self) -> int:
        """Bytes that must be free on a device: arguments, results of their own, temporaries and code."""
        return self.arguments + self.outputs - self.aliased + self.temporaries + self.code

    @property
    def fits(self) -> bool | None:
        """Whether ``needed`` is at most ``capacity``; ``None`` where the capacity is not known."""
        return None if self.capacity is None else self.needed <= self.capacity


def memory_report(
    module: Module,
    liveness: Liveness,
    *,
    names: Sequence[str],
    capacity: int | None,
    stats: MemoryStats | None,
) -> MemoryReport:
    """Put together what the compiler said (``stats``, if it got that far) and what the schedule shows.

    Args:
        module: the scheduled program.
        liveness: of it.
        names: path of each parameter.
        capacity: usable bytes of a device.
        stats: the compiler's own numbers; ``None`` at depth schedule, where the walk's are used.
    """
    inputs = _inputs(module, names)
    if stats is not None:
        arguments, outputs, aliased = stats.argument, stats.output, stats.alias
        temporaries, code = stats.temp, stats.code
        # On tiny programs the compiler's peak counts donated buffers twice; what it allocates is an upper bound.
        peak = min(stats.peak or stats.total, stats.total)
    else:
        arguments = sum(_rounded(argument.padded_bytes) for argument in inputs)
        aliased = sum(_rounded(argument.padded_bytes) for argument in inputs if argument.donated)
        outputs, temporaries, code = aliased + liveness.output_bytes, liveness.temporary_bytes, 0
        peak = arguments + liveness.peak_bytes
    return MemoryReport(
        capacity=capacity,
        arguments=arguments,
        outputs=outputs,
        aliased=aliased,
        temporaries=temporaries,
        code=code,
        peak=peak,
        estimated=stats is None,
        at_peak=liveness.at_peak,
        inputs=inputs,
        padding=_padding(inputs, liveness.at_peak),
        timeline=tuple(arguments + live for live in liveness.timeline),
    )


def _inputs(module: Module, names: Sequence[str]) -> tuple[ArgumentMemory, ...]:
    donated = set(module.aliased_outputs().values())
    out = []
    for number, parameter in module.entry_computation.parameters.items():
        for array in parameter.arrays:
            path = names[number] if number < len(names) else parameter.name
            out.append(ArgumentMemory(path, str(array), array.padded_bytes, array.unpadded_bytes, number in donated))
    return tuple(sorted(out, key=lambda argument: -argument.padded_bytes))


def _padding(inputs: Sequence[ArgumentMemory], at_peak: Sequence[LiveBuffer]) -> tuple[PaddedTensor, ...]:
    rows = [PaddedTensor(a.path, a.shape, a.padded_bytes, a.unpadded_bytes, "") for a in inputs]
    rows += [PaddedTensor(b.op_name or b.name, b.shape, b.padded_bytes, b.unpadded_bytes, b.source) for b in at_peak]
    return tuple(sorted((row for row in rows if row.waste > 0), key=lambda row: -row.waste))


def _rounded(size: int) -> int:
    return -(-size // 512) * 512
