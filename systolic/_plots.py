"""Plots for a page, drawn with nothing but the standard library: lines, stacked areas, stacked bars.

Each function returns a ``<figure>`` as text, for ``Page.add_plot``. Not for interactive work: there is no script in it,
only hover titles.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from html import escape
from itertools import accumulate, pairwise

from systolic._format import Kind, format_value
from systolic._svg import COLOURS, SIZES, Axis, Canvas, figure, nothing_to_draw, padded, text_at

Series = tuple[Sequence[float], Sequence[float]]

_MAX_POINTS = 2000  # beyond this a line is drawn as the extremes of each pixel column
_SMOOTH_FROM = 100  # points from which a noisy line gets its running mean
_HOVERS = {"half": 120, "full": 160, "narrow": 50}


def _runs(x: Sequence[float], y: Sequence[float], log: bool) -> list[list[tuple[float, float]]]:
    """Split a series at NaN, infinity and (log axis) at values that are not positive."""
    runs: list[list[tuple[float, float]]] = [[]]
    for a, b in zip(x, y, strict=True):
        a, b = float(a), float(b)
        if math.isfinite(a) and math.isfinite(b) and (b > 0 or not log):
            runs[-1].append((a, b))
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def downsample(points: Sequence[tuple[float, float]], columns: int, low: float, high: float) -> list:
    """Keep the smallest and the largest y of each of ``columns`` equal parts of [low, high], in x order.

    What is drawn is what the full line would have covered: a spike of one step among a million stays visible.
    """
    kept: list[tuple[float, float]] = []
    scale = columns / ((high - low) or 1.0)
    start = 0
    while start < len(points):
        column, end = int((points[start][0] - low) * scale), start + 1
        while end < len(points) and int((points[end][0] - low) * scale) == column:
            end += 1
        part = points[start:end]
        extremes = {min(range(len(part)), key=lambda i: part[i][1]), max(range(len(part)), key=lambda i: part[i][1])}
        kept.extend(part[i] for i in sorted(extremes))
        start = end
    return kept


def line_plot(
    series: Mapping[str, Series],
    x_label: str,
    y_label: str,
    title: str,
    log_y: bool = False,
    *,
    kind: Kind = "number",
    x_kind: Kind = "number",
    smooth: bool = False,
    wide: bool = False,
) -> str:
    """Lines over a common x axis.

    Args:
        series: name → (x, y), two sequences of the same length; NaN and infinity leave a gap.
        x_label: below the axis.
        y_label: beside the title.
        title: of the figure.
        log_y: logarithmic y axis; values that are not positive leave a gap.
        kind: unit of y.
        x_kind: unit of x.
        smooth: draw a series of 100 points or more faintly, and over it the running mean of a thirtieth of them.
        wide: take the whole width of the page instead of half.

    Raises:
        ValueError: x and y of a series differ in length.
    """
    lines = {name: _runs(x, y, log_y) for name, (x, y) in series.items()}
    points = [p for runs in lines.values() for run in runs for p in run]
    if not points:
        return nothing_to_draw(title, y_label, wide)
    x_low, x_high = min(p[0] for p in points), max(p[0] for p in points)
    if x_low == x_high:
        x_low, x_high = x_low - 0.5, x_high + 0.5
    smoothed = {name for name, runs in lines.items() if smooth and sum(map(len, runs)) >= _SMOOTH_FROM}
    note = " · ".join([y_label] * bool(y_label) + ["bold: running mean"] * bool(smoothed))
    y_range = padded(min(p[1] for p in points), max(p[1] for p in points), log_y)
    drawings = []
    for size in ("full" if wide else "half", "narrow"):
        canvas = Canvas(size, (x_low, x_high), y_range, x_kind, kind, x_label, log_y)
        hovers = []
        for index, (name, runs) in enumerate(lines.items()):
            _draw_line(canvas, runs, index, "faint" if name in smoothed else "line")
            if name in smoothed:
                means = [running_mean(run, max(9, sum(map(len, runs)) // 30)) for run in runs]
                _draw_line(canvas, means, index, "line")
            hovers += [(index, name, *p) for p in _hover_points(runs, _HOVERS[size])]
        for index, name, x, y, solid in hovers:  # above every line, or a later line would take the pointer
            hint = f"{name} · {x_label or 'x'} {format_value(x, x_kind)}: {format_value(y, kind)}"
            canvas.hover(canvas.x(x), canvas.y(y), index % COLOURS, hint, solid)
        drawings.append(canvas.svg(size, f"{title}: {', '.join(lines)} over {x_label or 'x'}"))
    return figure(title, note, list(lines), drawings, wide)


def running_mean(points: Sequence[tuple[float, float]], window: int) -> list[tuple[float, float]]:
    """Mean over ``window`` points around each one.

    Towards the ends the window shrinks and stays symmetric, so that a slope is not bent, down to an eighth; then it is
    cut off, so that the last point is not noise again.
    """
    sums, count, means = [0.0, *accumulate(y for _, y in points)], len(points), []
    for i, (x, _) in enumerate(points):
        reach = max(min(window // 2, i, count - 1 - i), window // 8)
        low, high = max(0, i - reach), min(count, i + reach + 1)
        means.append((x, (sums[high] - sums[low]) / (high - low)))
    return means


def _draw_line(canvas: Canvas, runs, index: int, style: str) -> None:
    total = sum(len(run) for run in runs)
    commands = []
    for run in runs:
        if total > _MAX_POINTS:
            run = downsample(run, int(canvas.right - canvas.left), canvas.x.low, canvas.x.high)
        commands.append("M" + "L".join(f"{canvas.x(a):.1f} {canvas.y(b):.1f}" for a, b in run))
    dashes = " dashed" if index >= COLOURS else ""
    canvas.parts.append(f'<path class="{style} s{index % COLOURS}{dashes}" d="{"".join(commands)}"/>')


def _hover_points(runs, most: int) -> list[tuple[float, float, bool]]:
    """The points that get a hover title, and whether they are visible dots: all of a few, or those between gaps."""
    total = sum(len(run) for run in runs)
    if total <= 40:
        return [(a, b, True) for run in runs for a, b in run]
    alone = [(*run[0], True) for run in runs if len(run) == 1]
    flat = [p for run in runs for p in run]
    return [(a, b, False) for a, b in [*flat[:: math.ceil(total / most)], flat[-1]]] + alone


def area_plot(
    x: Sequence[float],
    layers: Mapping[str, Sequence[float]],
    x_label: str,
    y_label: str,
    title: str,
    *,
    kind: Kind = "number",
    limit: tuple[str, float] | None = None,
    wide: bool = True,
) -> str:
    """Areas stacked over x, from zero, with the peak of their sum marked: memory over a schedule, for one.

    Args:
        x: positions, ascending.
        layers: name → values (not negative, finite), as many as x; the first lies at the bottom.
        x_label: below the axis.
        y_label: beside the title.
        title: of the figure.
        kind: unit of the values.
        limit: a label and a value, drawn as a line: a capacity.
        wide: take the whole width of the page instead of half.

    Raises:
        ValueError: a layer's length is not that of x.
    """
    xs = [float(v) for v in x]
    columns = list(zip(*layers.values(), strict=True))
    if layers and len(columns) != len(xs):
        raise ValueError(f"area_plot: layers have {len(columns)} values, x has {len(xs)}")
    sums = [float(sum(column)) for column in columns]
    if not sums:
        return nothing_to_draw(title, y_label, wide)
    peak = max(range(len(sums)), key=sums.__getitem__)
    top = max(sums[peak], limit[1] if limit else 0.0) or 1.0
    x_range = (xs[0], xs[-1]) if xs[-1] > xs[0] else (xs[0] - 0.5, xs[0] + 0.5)
    drawings = []
    for size in ("full" if wide else "half", "narrow"):
        canvas = Canvas(size, x_range, (0.0, top * 1.08), "number", kind, x_label, False)
        keep = _highest_per_column(xs, sums, x_range, int(canvas.right - canvas.left))
        base = [0.0] * len(keep)
        for index, _ in enumerate(layers):
            heights = [b + float(columns[i][index]) for b, i in zip(base, keep)]
            upper = "L".join(f"{canvas.x(xs[i]):.1f} {canvas.y(h):.1f}" for i, h in zip(keep, heights))
            lower = "L".join(f"{canvas.x(xs[i]):.1f} {canvas.y(h):.1f}" for i, h in zip(keep[::-1], base[::-1]))
            colour = index % COLOURS
            canvas.parts.append(f'<path class="area f{colour}" d="M{upper}L{lower}Z"/>')
            canvas.parts.append(f'<path class="line s{colour}" d="M{upper}"/>')
            base = heights
        if limit:
            canvas.limit(limit[1], f"{limit[0]} {format_value(limit[1], kind)}")
        stride = max(1, math.ceil(len(keep) / _HOVERS[size]))
        for i in {*keep[::stride], peak}:
            parts = "".join(f"\n{n}: {format_value(v, kind)}" for n, v in zip(layers, columns[i]))
            hint = f"{x_label or 'x'} {format_value(xs[i])}: {format_value(sums[i], kind)}{parts}"
            last = (len(layers) - 1) % COLOURS
            canvas.hover(canvas.x(xs[i]), canvas.y(sums[i]), last, hint, i == peak)
        at, word = canvas.x(xs[peak]), f"peak {format_value(sums[peak], kind)}"
        end = at > (canvas.left + canvas.right) / 2
        above = canvas.y(sums[peak]) - 9
        clash = limit and abs(canvas.y(limit[1]) - above) < 14
        height = above + 24 if clash or above < 12 else above
        canvas.parts.append(text_at(at - 6 if end else at + 6, height, word, "end" if end else "start", "strong"))
        drawings.append(canvas.svg(size, f"{title}: {word} at {x_label or 'x'} {format_value(xs[peak])}"))
    return figure(title, y_label, list(layers), drawings, wide)


def _highest_per_column(xs: Sequence[float], sums: Sequence[float], x_range, columns: int) -> list[int]:
    """Index of the highest sum in each pixel column (all indices when there are few)."""
    if len(xs) <= columns:
        return list(range(len(xs)))
    width = (x_range[1] - x_range[0]) / columns
    edges = [bisect_left(xs, x_range[0] + k * width) for k in range(columns)] + [len(xs)]
    return [max(range(a, b), key=sums.__getitem__) for a, b in pairwise(edges) if b > a]


def bar_plot(
    bars: Mapping[str, Mapping[str, float]],
    title: str,
    note: str = "",
    *,
    kind: Kind = "number",
    limit: tuple[str, float] | None = None,
    wide: bool = True,
) -> str:
    """Horizontal bars, each a stack of named parts, with its total; a limit is drawn across them: memory and capacity.

    Args:
        bars: label of the bar → (part → value, not negative). Parts of one name have one colour in all bars.
        title: of the figure.
        note: beside the title.
        kind: unit of the values.
        limit: a label and a value; a bar beyond it has its total in the colour of an error.
        wide: take the whole width of the page instead of half.
    """
    names = list(dict.fromkeys(part for parts in bars.values() for part in parts))
    totals = {label: float(sum(parts.values())) for label, parts in bars.items()}
    if not bars or not all(math.isfinite(t) for t in totals.values()):
        return nothing_to_draw(title, note, wide)
    top = max(*totals.values(), limit[1] if limit else 0.0) or 1.0
    described = ", ".join(f"{label} {format_value(total, kind)}" for label, total in totals.items())
    if limit:
        described += f"; {limit[0]} {format_value(limit[1], kind)}"
    drawings = []
    for size in ("full" if wide else "half", "narrow"):
        width, head, row = SIZES[size][0], 22.0 if limit else 4.0, 46.0
        height = head + row * len(bars) + 4
        axis = Axis(0.0, top, (2.0, width - (26.0 if limit else 4.0)), 4, kind)
        parts = []
        for k, (label, values) in enumerate(bars.items()):
            y, at = head + k * row, 0.0
            share = f" · {format_value(totals[label] / limit[1], 'percent')}" if limit and limit[1] > 0 else ""
            over = " bad" if limit and totals[label] > limit[1] else ""
            parts.append(text_at(2, y + 13, label, "start", "strong"))
            parts.append(text_at(width - 2, y + 13, format_value(totals[label], kind) + share, "end", "total" + over))
            parts.append(f'<rect class="track" x="2" y="{y + 19:.1f}" width="{axis(top) - 2:.1f}" height="16" rx="3"/>')
            for name, value in values.items():
                a, b = axis(at), axis(at + float(value))
                at += float(value)
                if b - a <= 0:
                    continue
                hint = escape(f"{label} · {name}: {format_value(value, kind)}")
                inset = 1.0 if b - a > 4 else 0.0  # a hairline between neighbours
                parts.append(
                    f'<rect class="f{names.index(name) % COLOURS}" x="{a:.1f}" y="{y + 19:.1f}" '
                    f'width="{b - a - inset:.1f}" height="16" rx="2"><title>{hint}</title></rect>'
                )
        if limit:
            at = axis(limit[1])
            anchor = "end" if at > width / 2 else "start"
            for k in range(len(bars)):
                parts.append(f'<path class="limit" d="M{at:.1f} {head + k * row + 17:.1f}v20"/>')
            parts.append(text_at(at, 12, f"{limit[0]} {format_value(limit[1], kind)}", anchor, "limit-text"))
        drawings.append(
            f'<svg class="{size}" viewBox="0 0 {width} {height:.0f}" role="img" aria-label="{escape(title)}: '
            f'{escape(described)}"><title>{escape(title)}: {escape(described)}</title>{"".join(parts)}</svg>'
        )
    return figure(title, note, names, drawings, wide)
