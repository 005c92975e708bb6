"""What takes the memory at the peak, told in groups: arguments by their names, buffers by what makes them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable

from systolic.check._memory import MemoryReport


@dataclasses.dataclass(frozen=True)
class Occupant:
    """Buffers that are alike: of one shape, and from one operation at one line, or arguments numbered through.

    Attributes:
        name: an operation of the user's program, or the path of an argument, with ``*`` where those of a group differ.
        shape: of each, without layout.
        count: how many there are.
        padded_bytes: bytes of all of them.
        unpadded_bytes: bytes of their values.
        source: ``file:line`` of the user's code; empty for arguments.
        kind: ``"argument"``, ``"temporary"`` or ``"output"``.
    """

    name: str
    shape: str
    count: int
    padded_bytes: int
    unpadded_bytes: int
    source: str
    kind: str

    @property
    def waste(self) -> int:
        """Bytes that hold nothing."""
        return self.padded_bytes - self.unpadded_bytes


def occupants(memory: MemoryReport) -> tuple[Occupant, ...]:
    """All that is in a device's memory at the peak, largest group first."""
    singles = [
        Occupant(a.path, a.shape, 1, a.padded_bytes, a.unpadded_bytes, "", "argument") for a in memory.inputs
    ] + [
        Occupant(b.op_name or b.name, b.shape, 1, b.padded_bytes, b.unpadded_bytes, b.source, b.kind)
        for b in memory.at_peak
    ]
    groups: dict[tuple[str, ...], list[Occupant]] = {}
    for one in singles:
        groups.setdefault((_numberless(one.name), one.shape, one.source, one.kind), []).append(one)
    return tuple(sorted(map(_together, groups.values()), key=lambda group: -group.padded_bytes))


def argument_totals(memory: MemoryReport) -> dict[str, int]:
    """Bytes of the arguments by the part of the program's input that they belong to, largest first.

    Example: ``{"state/opt_state": 25, "state/params": 12, "features": 1}`` (GiB).
    """
    totals: dict[str, int] = {}
    for argument in memory.inputs:
        parts = argument.path.split("/")
        part = "/".join(parts[: 2 if parts[0] in ("state", "variables") else 1])
        totals[part] = totals.get(part, 0) + argument.padded_bytes
    return dict(sorted(totals.items(), key=lambda item: -item[1]))


def kept_totals(memory: MemoryReport) -> dict[str, int]:
    """Those of :func:`argument_totals` that do not grow with the batch; empty where no argument is called ``batch``."""
    totals = argument_totals(memory)
    return {part: total for part, total in totals.items() if part != "batch"} if "batch" in totals else {}


def _numberless(path: str) -> str:
    return re.sub(r"\d+", "*", path)


def _together(group: list[Occupant]) -> Occupant:
    names = {one.name for one in group}
    return dataclasses.replace(
        group[0],
        name=group[0].name if len(names) == 1 else _common(names),
        count=len(group),
        padded_bytes=sum(one.padded_bytes for one in group),
        unpadded_bytes=sum(one.unpadded_bytes for one in group),
    )


def _common(names: Iterable[str]) -> str:
    """``layers/*/kernel`` for ``layers/0/kernel`` and ``layers/1/kernel``; what does not differ stays."""
    pieces = [re.split(r"(\d+)", name) for name in names]  # alike but for the numbers, so of one length
    return "".join(column[0] if len(set(column)) == 1 else "*" for column in zip(*pieces, strict=True))
