"""The report of a check: for a terminal, for a program, for a page."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

from systolic._errors import InputError
from systolic._page import format_value
from systolic.check._occupants import Occupant, argument_totals, occupants
from systolic.check._result import ProgramCheck, Verdict

SCHEMA = 1  # of ``to_json``: raised when a field changes its meaning or goes


@dataclasses.dataclass(frozen=True)
class CheckReport:
    """Results of a check, one per (program, target).

    ``print(report)`` shows it as plain text, ``rich`` as a table, Jupyter as a page.
    """

    results: tuple[ProgramCheck, ...]

    @property
    def ok(self) -> bool:
        """Whether every program compiles for every target and fits."""
        return self.exit_code == 0

    @property
    def exit_code(self) -> int:
        """For a command: 0 all fit, 1 one does not compile or does not fit, 2 one could not be checked."""
        verdicts = {result.verdict for result in self.results}
        if verdicts & {Verdict.TOO_LARGE, Verdict.REFUSED}:
            return 1
        return 2 if Verdict.UNKNOWN in verdicts else 0

    def result(self, program: str, target: str | None = None) -> ProgramCheck:
        """The result of one program, on ``target`` or on the first.

        Raises:
            KeyError: there is none.
        """
        for found in self.results:
            if found.program == program and target in (None, found.target):
                return found
        raise KeyError(f"{program} on {target}" if target else program)

    def to_json(self) -> dict[str, Any]:
        """Plain types; sizes in bytes, times in seconds, per device. ``schema`` tells their meaning."""
        return {
            "schema": SCHEMA,
            "ok": self.ok,
            "exit_code": self.exit_code,
            "results": [_plain(result) for result in self.results],
        }

    def html(self) -> str:
        """A self-contained page."""
        from systolic.check._html import page

        return page(self).html()

    def write_html(self, path: str | os.PathLike[str]) -> Path:
        """Write the page to a file.

        Raises:
            InputError: it cannot be written.
        """
        from systolic.check._html import page

        if not isinstance(path, str | os.PathLike) or not os.fspath(path):
            raise InputError(f"write_html(path): saw {path!r}, wanted the path of a file")
        try:
            return page(self).write(path)
        except OSError as error:
            raise InputError(f"write_html(path): cannot write {path} ({error.strerror or error})") from error

    def _repr_html_(self) -> str:
        from html import escape

        return f'<iframe srcdoc="{escape(self.html())}" style="width:100%;height:720px;border:0"></iframe>'

    def __str__(self) -> str:
        return "\n".join(line for result in self.results for line in _lines(result))

    def __rich__(self) -> Any:
        from systolic.check._terminal import renderable

        return renderable(self)


def share(result: ProgramCheck) -> float | None:
    """Needed memory as a fraction of the device's; ``None`` where either is not known."""
    return result.needed / result.capacity if result.needed is not None and result.capacity else None


def size(value: float | None) -> str:
    """Bytes as a person reads them."""
    return "–" if value is None else format_value(value, "bytes")


def count(value: float) -> str:
    """Operations as a person reads them: ``3.00 TFLOP``."""
    for unit, scale in (("PFLOP", 1e15), ("TFLOP", 1e12), ("GFLOP", 1e9), ("MFLOP", 1e6)):
        if value >= scale:
            return f"{value / scale:.2f} {unit}"
    return f"{value:.0f} FLOP"


def fit_text(result: ProgramCheck) -> str:
    """One sentence about the largest batch that fits; empty where it was not searched for."""
    if result.fit is None:
        return ""
    fit = result.fit
    if not fit.open and not fit.unknown and fit.largest is not None:
        return f"largest batch that fits: {fit.largest} (asked: {fit.asked}; multiples of {fit.multiple})"
    if fit.unknown:
        found = "no batch size was found to fit" if fit.largest is None else f"a batch of {fit.largest} fits"
        how = "" if fit.confirmed or fit.largest is None else " by its schedule"
        return (
            f"{found}{how}, one of {fit.too_large} does not, and what lies between is open: the search stopped at "
            f"{fit.trials[-1].batch_size}, which could not be checked (asked: {fit.asked}): {fit.unknown}"
        )
    if fit.largest is None and not fit.open:
        return f"no batch size fits, not even {fit.multiple} (asked: {fit.asked})"
    if fit.largest is None:
        return f"no batch size was found to fit; {fit.too_large} does not, and what lies below was not tried (asked: {fit.asked})"
    return (
        f"a batch of {fit.largest} fits, one of {fit.too_large} does not, and what lies between was not tried "
        f"(asked: {fit.asked}; multiples of {fit.multiple})"
    )


def details(result: ProgramCheck) -> list[str]:
    """Memory by kind, padding, work and notes, one indented line each."""
    lines = []
    memory = result.memory
    if memory is not None:
        word = "estimated from the schedule" if memory.estimated else "allocated by the compiler"
        if memory.estimated and result.needed not in (None, memory.needed):
            word += f"; the compiler's own sum is {size(result.needed)}"
        lines.append(
            f"  arguments {size(memory.arguments)}, outputs {size(memory.outputs)} ({size(memory.aliased)} in donated "
            f"buffers), temporaries {size(memory.temporaries)}, code {size(memory.code)}; peak {size(memory.peak)} ({word})"
        )
        if len(totals := argument_totals(memory)) > 1:
            listed = [f"{part} {size(total)}" for part, total in list(totals.items())[:6]]
            lines.append(f"  arguments by part: {', '.join(listed)}{' and more' if len(totals) > 6 else ''}")
        if memory.padding:
            waste, worst = sum(row.waste for row in memory.padding), memory.padding[0]
            lines.append(f"  tile padding {size(waste)}, most in {worst.name} {worst.shape}: {size(worst.waste)}")
    if result.flops is not None:
        bound = f"; at least {format_value(result.bound.seconds, 'seconds')} a run" if result.bound else ""
        lines.append(
            f"  work per device: {count(result.flops.matrix)} in matrix products, {count(result.flops.elementwise)} "
            f"elementwise{bound}"
        )
    return lines + [f"  note: {note}" for note in result.notes]


def _lines(result: ProgramCheck) -> list[str]:
    took = f"{result.depth}, {result.seconds:.1f} s" + (f", cache {result.cache}" if result.cache else "")
    lines = [
        f"{result.program} on {result.target} ({result.devices} device{'s' * (result.devices > 1)}): {result.verdict}  [{took}]"
    ]
    if result.reason:
        lines.append(f"  {result.reason}")
    if result.fit is not None:
        lines.append(f"  {fit_text(result)}")
    if result.needed is not None:
        of = "" if result.capacity is None else f" of {size(result.capacity)} ({share(result):.0%})"
        lines.append(f"  memory per device: {size(result.needed)}{of}")
    lines += details(result)
    if result.verdict is Verdict.TOO_LARGE and result.memory is not None:
        lines.append("  largest buffers at the peak:")
        lines += [f"    {_row(group)}" for group in occupants(result.memory)[:8]]
    return lines


def times(group: Occupant) -> str:
    """``8 × 1.00 GiB``, or the size alone."""
    return size(group.padded_bytes) if group.count == 1 else f"{group.count} × {size(group.padded_bytes / group.count)}"


def _row(group: Occupant) -> str:
    return f"{times(group):>14}  {group.kind:9}  {group.shape}  {group.name}  {group.source}".rstrip()


def _plain(result: ProgramCheck) -> dict[str, Any]:
    out = dataclasses.asdict(result) | {"verdict": str(result.verdict), "ok": result.ok}
    if result.memory is not None:
        memory = out["memory"]
        memory["needed"] = result.memory.needed
        memory["argument_totals"] = argument_totals(result.memory)
        memory["largest"] = [dataclasses.asdict(group) for group in occupants(result.memory)[:50]]
        for name, most in (("at_peak", 50), ("inputs", 200), ("padding", 50)):
            memory[name] = memory[name][:most]
        memory["timeline"] = _thin(result.memory.timeline, 500)
    if result.flops is not None:
        out["flops"]["total"] = result.flops.total
        out["flops"]["by_op"] = out["flops"]["by_op"][:100]
    return out


def _thin(values: tuple[int, ...], most: int) -> list[int]:
    """At most ``most`` values; each stands for a stretch, and is its largest."""
    step = -(-len(values) // most) or 1
    return [max(values[at : at + step]) for at in range(0, len(values), step)]
