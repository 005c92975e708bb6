"""The report as a self-contained page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from systolic._page import Page, area_plot, bar_plot, format_value
from systolic.check._occupants import argument_totals, occupants
from systolic.check._report import count, fit_text, share, size, times
from systolic.check._result import ProgramCheck, Verdict

if TYPE_CHECKING:
    from systolic.check._report import CheckReport

_TONE = {Verdict.FITS: "good", Verdict.TOO_LARGE: "bad", Verdict.REFUSED: "bad", Verdict.UNKNOWN: "warn"}
_ROWS = 15
_POINTS = 600


def page(report: CheckReport) -> Page:
    """Verdicts and memory of all programs first, then one chapter per program and target."""
    out = Page("Check against the TPU compiler", _summary(report), "Made by systolic check; sizes are per device.")
    out.add_cards(
        [
            (
                f"{result.program} on {result.target}",
                str(result.verdict),
                ""
                if share(result) is None
                else f"{size(result.needed)} of {size(result.capacity)} ({share(result):.0%})",
                _TONE[result.verdict],
            )
            for result in report.results
        ]
    )
    for target in dict.fromkeys(result.target for result in report.results):
        _memory_bars(out, target, [result for result in report.results if result.target == target])
    for result in report.results:
        _chapter(out, result)
    return out


def _summary(report: CheckReport) -> str:
    good = sum(result.ok for result in report.results)
    return f"{good} of {len(report.results)} programs compile and fit"


def _memory_bars(out: Page, target: str, results: list[ProgramCheck]) -> None:
    bars = {}
    for result in results:
        memory = result.memory
        if memory is None:
            continue
        bars[result.program] = {
            "arguments": memory.arguments,
            "outputs of their own": max(memory.outputs - memory.aliased, 0),
            "temporaries": memory.temporaries,
            "code": memory.code,
        }
    if bars:
        capacity = results[0].capacity
        limit = None if capacity is None else ("usable HBM", capacity)
        out.add_plot(bar_plot(bars, f"Memory of one device of {target}", kind="bytes", limit=limit))


def _chapter(out: Page, result: ProgramCheck) -> None:
    out.add_heading(f"{result.program} on {result.target}")
    if result.reason:
        out.add_text(result.reason, _TONE[result.verdict])
    if result.fit is not None:
        out.add_text(fit_text(result), "note")
        rows = [
            (
                t.batch_size,
                size(t.needed),
                "fits" if t.fits else "not checked" if t.unknown else "does not fit",
                t.depth,
            )
            for t in result.fit.trials
        ]
        out.add_table(("batch size", "needed per device", "", "depth"), rows, "rr")
    cached = ", from the cache" if result.cache == "hit" else ""
    out.add_text(
        f"{result.devices} device{'s' * (result.devices > 1)}; depth {result.depth}, {result.seconds:.1f} s{cached}.",
        "muted",
    )
    if result.memory is not None:
        _memory(out, result)
    if result.flops is not None:
        _work(out, result)
    for note in result.notes:
        out.add_text(note, "note")


def _memory(out: Page, result: ProgramCheck) -> None:
    memory = result.memory
    if memory.timeline:
        # Each point stands for a stretch of the schedule and shows the most that is live in it.
        step = -(-len(memory.timeline) // _POINTS)
        places = list(range(0, len(memory.timeline), step))
        most = [max(memory.timeline[at : at + step]) for at in places]
        layers = {
            "arguments": [float(memory.arguments)] * len(places),
            "temporaries and outputs": [float(live - memory.arguments) for live in most],
        }
        limit = None if memory.capacity is None else ("usable HBM", memory.capacity)
        out.add_plot(
            area_plot(
                places,
                layers,
                "instruction of the schedule",
                "live bytes",
                "Live memory over the schedule",
                kind="bytes",
                limit=limit,
            )
        )
    if largest := occupants(memory):
        out.add_heading("Largest buffers at the peak", 3)
        rows = [(times(g), size(g.waste), g.kind, g.shape, g.name, g.source) for g in largest[:_ROWS]]
        out.add_table(("size", "padding", "kind", "shape", "argument or operation", "source"), rows, "rr")
    if totals := argument_totals(memory):
        out.add_heading("Arguments by part", 3)
        out.add_table(("size", "part"), [(size(total), part) for part, total in list(totals.items())[:_ROWS]], "r")
    if memory.padding:
        out.add_heading("Tile padding", 3)
        rows = [(size(p.waste), f"{p.factor:.2f}×", p.shape, p.name, p.source) for p in memory.padding[:_ROWS]]
        out.add_table(("waste", "size", "shape", "tensor", "source"), rows, "rr")


def _work(out: Page, result: ProgramCheck) -> None:
    out.add_heading("Work", 3)
    bound = result.bound
    cards = [
        ("matrix products", count(result.flops.matrix), "dots and convolutions", ""),
        ("elementwise", count(result.flops.elementwise), "vector unit", ""),
    ]
    if bound is not None:
        cards.append(("at least", format_value(bound.seconds, "seconds"), "a run, at the published peaks", ""))
    out.add_cards(cards)
    total = result.flops.matrix or 1.0
    rows = [
        (f"{op.flops / total:.1%}", count(op.flops), op.executions, op.kind, op.op_name, op.source)
        for op in result.flops.by_op[:_ROWS]
    ]
    if rows:
        out.add_table(("share", "matrix work", "runs", "kind", "operation", "source"), rows, "rrr")
