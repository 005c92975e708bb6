"""The report in a terminal, by rich."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from systolic.check._result import ProgramCheck, Verdict

if TYPE_CHECKING:
    from systolic.check._report import CheckReport

_STYLE = {Verdict.FITS: "green", Verdict.TOO_LARGE: "red", Verdict.REFUSED: "red", Verdict.UNKNOWN: "yellow"}


def renderable(report: CheckReport) -> Any:
    """A rich renderable: a table of all results, then what needs explaining."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from systolic.check._report import count, details, fit_text, share, size

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("program", "target"):
        table.add_column(name, overflow="fold")
    table.add_column("verdict", no_wrap=True)
    table.add_column("memory per device")
    for name in ("matrix work", "compile"):
        table.add_column(name, justify="right")
    for result in report.results:
        part = share(result)
        table.add_row(
            result.program,
            result.target,
            Text(str(result.verdict), style=_STYLE[result.verdict]),
            "–" if part is None else f"{size(result.needed)} of {size(result.capacity)} ({part:.0%})",
            count(result.flops.matrix) if result.flops else "–",
            "cached" if result.cache == "hit" else f"{result.depth} {result.seconds:.1f} s",
        )
    parts: list[Any] = [table]
    for result in report.results:
        parts.append(Text(f"\n{result.program} on {result.target}", style="bold"))
        if result.reason:
            parts.append(Text(result.reason, style=_STYLE[result.verdict]))
        if result.fit is not None:
            parts.append(Text(fit_text(result), style="bold"))
        if result.verdict is Verdict.TOO_LARGE and result.memory is not None:
            parts.append(_buffers(result))
        parts += [Text(line.strip(), style="dim") for line in details(result)]
    return Group(*parts)


def _buffers(result: ProgramCheck) -> Any:
    from rich.table import Table

    from systolic.check._occupants import occupants
    from systolic.check._report import size, times

    table = Table(title="largest buffers at the peak", title_justify="left", box=None, pad_edge=False)
    for name, justify in (("size", "right"), ("padding", "right"), ("kind", "left"), ("shape", "left")):
        table.add_column(name, justify=justify, no_wrap=True)
    for name in ("argument or operation", "source"):
        table.add_column(name, overflow="fold")
    for group in occupants(result.memory)[:8]:
        waste = size(group.waste) if group.waste else ""
        table.add_row(times(group), waste, group.kind, group.shape, group.name, group.source)
    return table
