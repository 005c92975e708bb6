"""Numbers as a person reads them: values with their units, round ticks, labels of an axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

Kind = Literal["number", "bytes", "seconds", "percent"]


def format_value(value: float, kind: Kind = "number", digits: int = 4) -> str:
    """A value as a person reads it: ``12,500``, ``0.0312``, ``1.50 GiB``, ``3.1 s``, ``42 %`` (of a fraction 0.42).

    Args:
        value: the number; bytes for ``"bytes"``, seconds for ``"seconds"``, a fraction for ``"percent"``.
        kind: how to show it.
        digits: significant digits of a plain number.

    Example:
        >>> format_value(12500.0), format_value(1.5 * 2**30, "bytes"), format_value(75.0, "seconds")
        ('12,500', '1.50 GiB', '1 min 15 s')
    """
    value = float(value)
    if not math.isfinite(value):
        return str(value)
    if kind == "bytes":
        scale, unit = byte_unit(abs(value))
        return f"{value / scale:.0f} B" if scale == 1 else f"{value / scale:.2f} {unit}"
    if kind == "percent":
        share = 100 * value
        return f"{share:.0f} %" if abs(share) >= 10 or share == round(share) else f"{share:.1f} %"
    if kind == "seconds":
        return _format_seconds(value)
    if value == 0:
        return "0"
    if 1e-4 <= abs(value) < 1e9:
        decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
        text = f"{value:,.{decimals}f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    return f"{value:.{max(digits - 2, 1)}e}"


def _format_seconds(value: float) -> str:
    size = abs(value)
    if size < 1e-6:
        return "0 s" if size == 0 else f"{value * 1e9:.3g} ns"
    if size < 1e-3:
        return f"{value * 1e6:.3g} µs"
    if size < 1:
        return f"{value * 1e3:.3g} ms"
    if size < 59.95:
        return f"{value:.1f} s"
    total = round(value)
    if size < 3600:
        return f"{total // 60} min {total % 60} s" if total % 60 else f"{total // 60} min"
    hours, minutes = divmod(total // 60, 60)
    return f"{hours:,} h {minutes} min"


def byte_unit(size: float) -> tuple[float, str]:
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size >= 1024**power:
            return 1024.0**power, unit
    return 1.0, "B"


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About ``count`` round numbers (1, 2, 2.5, 5 times a power of ten) inside [low, high].

    Example:
        >>> nice_ticks(0, 1.1, 5)
        [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    span = high - low
    if not (span > 0 and math.isfinite(span)):
        return [low]
    rough = span / max(count, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{k * step:.12g}") for k in range(first, last + 1)]


def tick_labels(values: Sequence[float], kind: Kind) -> list[str]:
    """Labels of one axis, all with the same unit and number of decimals."""
    biggest = max((abs(v) for v in values), default=0.0)
    scale, unit = 1.0, ""
    if kind == "bytes":
        scale, unit = byte_unit(biggest)
    elif kind == "percent":
        scale, unit = 0.01, "%"
    elif kind == "seconds":
        scale, unit = next(((s, u) for s, u in ((1.0, "s"), (1e-3, "ms")) if biggest >= s), (1e-6, "µs"))
    elif biggest >= 10_000:
        scale, unit = next((s, u) for s, u in ((1e9, "G"), (1e6, "M"), (1e3, "k")) if biggest >= s)
    elif 0 < biggest < 1e-3:
        return [f"{v:.3g}" for v in values]
    if biggest / scale >= 1e6:
        return [f"{v:.3g}" for v in values]
    gap = "" if unit in ("k", "M", "G") else " " if unit else ""
    scaled = [v / scale for v in values]
    for decimals in range(9):
        if all(abs(v - round(v, decimals)) < 1e-6 * max(abs(v), 1e-9) + 1e-12 for v in scaled):
            break
    return [f"{v:,.{decimals}f}{gap}{unit}" if v else f"0{gap + unit if kind != 'number' else ''}" for v in scaled]
