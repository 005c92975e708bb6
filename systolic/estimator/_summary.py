"""The page in the run folder: curves, rates, compiles, configuration and the numbers a run ended with."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from systolic._log import logger
from systolic._page import Page, bar_plot, format_value, line_plot
from systolic.estimator._events import read_events

FILE_NAME = "summary.html"

# Values of "train" records that are about the run, not about the model.
LEARNING_RATE, STEPS_PER_SECOND = "learning_rate", "steps_per_second"
INPUT_WAIT = "input_wait"
_RUN_METRICS = (LEARNING_RATE, STEPS_PER_SECOND, INPUT_WAIT)
_MOST_PLOTS = 24

Curve = tuple[list[int], list[float]]


def write_summary(model_dir: str | os.PathLike[str], info: Mapping[str, Any]) -> Path | None:
    """Draw ``summary.html`` from ``metrics.jsonl`` and what the run knows about itself.

    Args:
        model_dir: the run folder.
        info: all entries are optional:
            ``title`` str; ``target`` str; ``devices`` int; ``step`` int, the last; ``seconds`` float, of the run;
            ``status`` str, such as "finished" or the reason of an early stop; ``ok`` bool, False for a failed run;
            ``parameters`` int, their number; ``parameter_bytes`` int; ``config`` dict name → value;
            ``compiles`` list of dicts with ``program``, ``seconds`` and ``cache`` ("hit", "miss" or "off");
            ``phases`` dict name → seconds (the rest of ``seconds`` is shown as training);
            ``versions`` dict package → version;
            ``notes`` list of str, each shown as a box.

    Returns:
        the path, or None if it could not be written: then one warning names the reason, and the run goes on.
    """
    path = Path(model_dir) / FILE_NAME
    try:
        return summary_page(read_events(model_dir), info).write(path)
    except Exception as error:  # a page about the run must never be the end of it
        logger.warning("%s could not be written: %s: %s", path, type(error).__name__, error)
        return None


def summary_page(events: Sequence[Mapping[str, Any]], info: Mapping[str, Any]) -> Page:
    """The page for these records; arguments as for ``write_summary``."""
    curves = _curves(events)
    devices = f"{info['devices']} device{'s' if info['devices'] != 1 else ''}" if info.get("devices") else ""
    started = time.strftime("%Y-%m-%d %H:%M", time.localtime(events[0]["time"])) if events else ""
    facts = [str(info.get("target", "")), devices, f"started {started}" if started else ""]
    versions = " · ".join(f"{name} {version}" for name, version in dict(info.get("versions", {})).items())
    page = Page(str(info.get("title", "Training run")), " · ".join(f for f in facts if f), footer=versions)
    page.add_cards(_cards(curves, info))
    if len(str(info.get("status", ""))) > 20:
        page.add_text(str(info["status"]), "note" if info.get("ok", True) else "bad")
    for note in info.get("notes", ()):
        page.add_text(str(note), "note")
    _add_curves(page, curves)
    _add_speed(page, curves, info)
    _add_compiles(page, info.get("compiles", ()))
    _add_final(page, curves)
    if info.get("config"):
        page.add_heading("Configuration")
        page.add_table(["setting", "value"], [[name, str(value)] for name, value in dict(info["config"]).items()])
    return page


def _curves(events: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Curve]]:
    """metric → kind → (steps, values) of kinds that begin with "train" or "eval"; a step's last record counts."""
    points: dict[str, dict[str, dict[int, float]]] = {}
    for event in events:
        if event["kind"].startswith(("train", "eval")):
            for name, value in _numbers(event["metrics"]):
                points.setdefault(name, {}).setdefault(event["kind"], {})[event["step"]] = value
    ordered = sorted(points, key=lambda name: (name != "loss", not name.endswith("loss")))
    return {
        name: {kind: (sorted(values), [values[s] for s in sorted(values)]) for kind, values in points[name].items()}
        for name in ordered
    }


def _numbers(metrics: Mapping[str, Any], prefix: str = ""):
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{name}/")
        elif isinstance(value, (int, float)):
            yield prefix + name, float(value)


def _is_share(name: str, kinds: Mapping[str, Curve]) -> bool:
    """Whether a metric reads best as a percentage: an accuracy and its kin, inside [0, 1]."""
    known = ("accuracy", "precision", "recall", "error_rate", "top_1", "top_5", "top1", "top5")
    values = [v for _, ys in kinds.values() for v in ys if math.isfinite(v)]
    return name.rsplit("/", 1)[-1].endswith(known) and all(0 <= v <= 1 for v in values)


def _shown(name: str, kinds: Mapping[str, Curve], value: float) -> str:
    return f"{100 * value:.2f} %" if _is_share(name, kinds) and math.isfinite(value) else format_value(value)


def _status(info: Mapping[str, Any]) -> str:
    """One or two words for the card; a longer status has a box of its own."""
    status, ok = str(info["status"]), info.get("ok", True)
    return status if len(status) <= 20 else "stopped early" if ok else "failed"


def _cards(curves: Mapping[str, Mapping[str, Curve]], info: Mapping[str, Any]) -> list[tuple[str, ...]]:
    cards: list[tuple[str, ...]] = []
    if info.get("status"):
        took = f"after {format_value(info['seconds'], 'seconds')}" if info.get("seconds") is not None else ""
        cards.append(("status", _status(info), took, "good" if info.get("ok", True) else "bad"))
    if info.get("step") is not None:
        cards.append(("steps", f"{info['step']:,}", ""))
    evaluated = [(name, kinds) for name, kinds in curves.items() if any(k.startswith("eval") for k in kinds)]
    for name, kinds in (evaluated or [(n, k) for n, k in curves.items() if n not in _RUN_METRICS])[:4]:
        kind = next((k for k in kinds if k.startswith("eval")), next(iter(kinds)))
        steps, values = kinds[kind]
        cards.append((name, _shown(name, kinds, values[-1]), f"{kind}, step {steps[-1]:,}"))
    rates = sorted(v for _, ys in curves.get(STEPS_PER_SECOND, {}).values() for v in ys if math.isfinite(v))
    if rates:
        cards.append(("rate", format_value(rates[len(rates) // 2], digits=3), "steps/s, median"))
    if info.get("parameters") is not None:
        size = format_value(info["parameter_bytes"], "bytes") if info.get("parameter_bytes") is not None else ""
        cards.append(("parameters", _count(info["parameters"]), size))
    return cards


def _count(number: int) -> str:
    for scale, unit in ((1e9, " B"), (1e6, " M")):
        if number >= scale:
            return f"{number / scale:.1f}{unit}"
    return f"{number:,}"


def _add_curves(page: Page, curves: Mapping[str, Mapping[str, Curve]]) -> None:
    names = [name for name in curves if name not in _RUN_METRICS]
    page.add_heading("Curves")
    if not names:
        page.add_text("No metrics have been logged yet.", "muted")
    drawn = names[:_MOST_PLOTS]
    for name in drawn:
        wide = name == drawn[0] and len(drawn) % 2 == 1  # so that the others fill their rows
        kind = "percent" if _is_share(name, curves[name]) else "number"
        page.add_plot(line_plot(curves[name], "step", "", name, kind=kind, smooth=True, wide=wide))
    if len(names) > _MOST_PLOTS:
        page.add_text(f"Not drawn, but in metrics.jsonl: {', '.join(names[_MOST_PLOTS:])}.", "muted")


def _add_speed(page: Page, curves: Mapping[str, Mapping[str, Curve]], info: Mapping[str, Any]) -> None:
    plots = [
        (STEPS_PER_SECOND, "Rate", "steps/s", "number"),
        (INPUT_WAIT, "Waiting for input", "share of the time", "percent"),
        (LEARNING_RATE, "Learning rate", "", "number"),
    ]
    plots = [plot for plot in plots if plot[0] in curves]
    phases = _phases(info)
    if not plots and not phases:
        return
    page.add_heading("Speed and schedule")
    for number, (key, title, unit, kind) in enumerate(plots):
        smooth, wide = key != LEARNING_RATE, number == 0 and len(plots) % 2 == 1
        page.add_plot(line_plot(curves[key], "step", unit, title, kind=kind, smooth=smooth, wide=wide))
    if phases:
        page.add_plot(bar_plot({"run": phases}, "Where the time went", kind="seconds"))


def _phases(info: Mapping[str, Any]) -> dict[str, float]:
    """Phase → seconds, longest first after training; what no phase accounts for is training."""
    phases = {str(k): float(v) for k, v in dict(info.get("phases", {})).items() if float(v) > 0}
    rest = float(info.get("seconds") or 0.0) - sum(phases.values())
    if phases and rest > 0 and not phases.keys() & {"train", "training"}:
        phases["training"] = rest
    return dict(sorted(phases.items(), key=lambda item: (item[0] not in ("train", "training"), -item[1])))


def _add_compiles(page: Page, compiles: Sequence[Mapping[str, Any]]) -> None:
    if not compiles:
        return
    words = {"hit": "hit: taken from disk", "miss": "miss: compiled", "off": "off"}
    rows = [
        [c.get("program", ""), format_value(c["seconds"], "seconds"), words.get(c.get("cache"), c.get("cache"))]
        for c in compiles
    ]
    page.add_heading("Compiles").add_table(["program", "time", "cache"], rows, "lrl")


def _add_final(page: Page, curves: Mapping[str, Mapping[str, Curve]]) -> None:
    rows = []
    for name, kinds in curves.items():
        for kind, (steps, values) in kinds.items():
            finite = [(v, s) for s, v in zip(steps, values) if math.isfinite(v)]
            if not finite or name in _RUN_METRICS:
                continue
            low, high = min(finite), max(finite, key=lambda p: (p[0], -p[1]))
            shown = [f"{_shown(name, kinds, v)} at {s:,}" for v, s in (low, high)]
            rows.append([name, kind, _shown(name, kinds, values[-1]), f"{steps[-1]:,}", *shown])
    if rows:
        page.add_heading("Metrics")
        page.add_table(["metric", "kind", "last", "at step", "lowest", "highest"], rows, "llrrrr")
