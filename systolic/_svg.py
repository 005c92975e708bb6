"""The frame of a plot as inline SVG: axes, grid, limit, hover titles, and the figure around it.

A figure holds its drawing twice, for a wide and for a narrow place, so that its letters keep their size on a phone; the
style sheet of the page shows the one that fits and gives the colours, light or dark. There is no script in it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from systolic._format import Kind, byte_unit, format_value, nice_ticks, tick_labels

COLOURS = 8  # --c0 … --c7 in the style sheet
SIZES = {"half": (560, 290), "full": (1080, 320), "narrow": (380, 270)}  # width and height in pixels


class Axis:
    """Maps values to pixels; knows its ticks. ``log`` axes have a tick per decade (and 2, 5 where there is room)."""

    def __init__(self, low: float, high: float, pixels: tuple[float, float], count: int, kind: Kind, log: bool = False):
        self.low, self.high, self.log, self.kind = low, high, log, kind
        self._start, self._end = pixels
        self._a, self._b = (math.log10(low), math.log10(high)) if log else (low, high)
        self.ticks = self._log_ticks(count) if log else self._linear_ticks(count)
        self.labels = [format_value(t, kind, 3) for t in self.ticks] if log else tick_labels(self.ticks, kind)

    def __call__(self, value: float) -> float:
        position = math.log10(value) if self.log else value
        share = (position - self._a) / (self._b - self._a)
        return self._start + share * (self._end - self._start)

    def _linear_ticks(self, count: int) -> list[float]:
        if self.kind != "bytes":
            return nice_ticks(self.low, self.high, count)
        scale, _ = byte_unit(max(abs(self.low), abs(self.high)))  # round numbers of GiB, not of 10⁹ bytes
        return [t * scale for t in nice_ticks(self.low / scale, self.high / scale, count)]

    def _log_ticks(self, count: int) -> list[float]:
        decades = range(math.floor(self._a), math.ceil(self._b) + 1)
        stride = max(1, math.ceil(len(decades) / (count + 1)))
        choices = [(1, 2, 5), (1, 3), (1,)]
        for digits in choices if stride == 1 else [(1,)]:
            ticks = [m * 10.0**d for d in decades if d % stride == 0 for m in digits]
            ticks = [t for t in ticks if self.low * 0.9999 <= t <= self.high * 1.0001]
            if len(ticks) <= count + 2:
                break
        return ticks if len(ticks) >= 2 else nice_ticks(self.low, self.high, count)


def text_at(x: float, y: float, text: str, anchor: str = "start", style: str = "") -> str:
    extra = f' class="{style}"' if style else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{extra}>{escape(text)}</text>'


def label_width(labels: Sequence[str]) -> float:
    return 6.7 * max((len(label) for label in labels), default=0)


class Canvas:
    """One drawing: axes, grid and the marks put on them."""

    def __init__(self, size: str, x_range, y_range, x_kind: Kind, y_kind: Kind, x_label: str, log_y: bool):
        self.width, self.height = SIZES[size]
        top, bottom = 12.0, self.height - (40.0 if x_label else 24.0)
        self.y = Axis(*y_range, (bottom, top), 5, y_kind, log_y)
        self.left = max(30.0, label_width(self.y.labels) + 12)
        self.right = self.width - 14.0
        self.top, self.bottom = top, bottom
        self.x = Axis(*x_range, (self.left, self.right), max(3, int((self.right - self.left) // 90)), x_kind)
        self.parts: list[str] = []
        for tick, label in zip(self.y.ticks, self.y.labels):
            at = self.y(tick)
            self.parts.append(f'<path class="grid" d="M{self.left:.1f} {at:.1f}H{self.right:.1f}"/>')
            self.parts.append(text_at(self.left - 8, at + 4, label, "end"))
        self.parts.append(f'<path class="axis" d="M{self.left:.1f} {bottom:.1f}H{self.right:.1f}"/>')
        for tick, label in zip(self.x.ticks, self.x.labels):
            at = self.x(tick)
            half = label_width([label]) / 2
            anchor = "end" if at + half > self.width else "start" if at - half < 0 else "middle"
            self.parts.append(
                f'<path class="axis" d="M{at:.1f} {bottom:.1f}v4"/>' + text_at(at, bottom + 18, label, anchor)
            )
        if x_label:
            self.parts.append(text_at((self.left + self.right) / 2, self.height - 5, x_label, "middle", "label"))

    def hover(self, x: float, y: float, colour: int, title: str, solid: bool) -> None:
        style = "dot" if solid else "hover"
        self.parts.append(
            f'<circle class="{style} f{colour}" cx="{x:.1f}" cy="{y:.1f}" r="{3 if solid else 5}">'
            f"<title>{escape(title)}</title></circle>"
        )

    def limit(self, value: float, label: str) -> None:
        at = self.y(value)
        self.parts.append(f'<path class="limit" d="M{self.left:.1f} {at:.1f}H{self.right:.1f}"/>')
        self.parts.append(text_at(self.right, at - 5 if at > self.top + 14 else at + 14, label, "end", "limit-text"))

    def svg(self, size: str, name: str) -> str:
        return (
            f'<svg class="{size}" viewBox="0 0 {self.width} {self.height}" role="img" aria-label="{escape(name)}">'
            f"<title>{escape(name)}</title>{''.join(self.parts)}</svg>"
        )


def figure(title: str, note: str, names: Sequence[str], drawings: Sequence[str], wide: bool) -> str:
    """Title, note (unit or axis), legend (left out for one series) and the drawings, as one ``<figure>``."""
    legend = ""
    if len(names) > 1:
        keys = (f'<li><i class="b{k % COLOURS}"></i>{escape(n)}</li>' for k, n in enumerate(names))
        legend = f'<ul class="legend">{"".join(keys)}</ul>'
    subtitle = f"<small>{escape(note)}</small>" if note else ""
    style = "plot wide" if wide else "plot"
    return (
        f'<figure class="{style}"><figcaption><b>{escape(title)}</b>{subtitle}{legend}</figcaption>'
        f'<div class="drawing">{"".join(drawings)}</div></figure>'
    )


def nothing_to_draw(title: str, note: str, wide: bool) -> str:
    return figure(title, note, [], ['<p class="muted">No finite values to draw.</p>'], wide)


def padded(low: float, high: float, log: bool) -> tuple[float, float]:
    if log:
        return (low / 2, high * 2) if low == high else (low, high)
    if low == high:
        pad = abs(low) * 0.1 or 1.0
        return low - pad, high + pad
    pad = (high - low) * 0.04
    bottom = 0.0 if 0 <= low < 0.35 * high else low - pad  # a curve that comes near zero is shown from zero
    return bottom, high + pad
