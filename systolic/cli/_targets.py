"""``systolic targets``: what there is to compile for."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import Any

from systolic.cli._output import console, emit
from systolic.target import HARDWARE, Hardware, Target, known_targets


def targets(options: argparse.Namespace) -> int:
    """List generations and their sizes, or show one."""
    if options.name is None:
        return _all(options.json)
    hardware: Hardware | None
    facts: dict[str, Any]
    if options.name in HARDWARE:
        hardware, facts = HARDWARE[options.name], {"sizes": list(known_targets(options.name))}
    else:
        target = Target(options.name)
        names = ("name", "platform", "attached", "num_devices", "num_chips", "num_hosts", "num_slices", "topology")
        hardware, facts = target.hardware, {name: getattr(target, name) for name in names}
    if options.json:
        emit(json.dumps(facts | {"hardware": _fields(hardware)}, indent=2))
        return 0
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=False)
    for name, value in facts.items():
        table.add_row(name.replace("_", " "), ", ".join(value) if isinstance(value, list) else str(value))
    console().print(table)
    if hardware is not None:
        console().print(_details(hardware))
    return 0


def _all(as_json: bool) -> int:
    if as_json:
        listed = {name: {"sizes": list(known_targets(name)), "hardware": _fields(h)} for name, h in HARDWARE.items()}
        emit(json.dumps(listed, indent=2))
        return 0
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in ("generation", "HBM", "bf16", "int8", "HBM bandwidth", "ICI links", "targets"):
        table.add_column(
            name, justify="left" if name in ("generation", "targets") else "right", no_wrap=name != "targets"
        )
    for name, hardware in HARDWARE.items():
        sizes = known_targets(name)
        shown = ", ".join((*sizes[:4], "…", sizes[-1]) if len(sizes) > 6 else sizes)
        table.add_row(name, *(_value(field, getattr(hardware, field)) for field in _SHOWN), shown)
    out = console()
    out.print(
        "Names of attached ones: auto, cpu, cpu:8, gpu, tpu (systolic doctor tells which are here). Described, to compile for without owning one (per device):\n"
    )
    out.print(table)
    out.print(
        "\nAlso topologies (v5p:4x4x4) and several slices (v6e-16x2). 'systolic targets v5e' shows one in detail."
    )
    return 0


_SHOWN = ("hbm_bytes", "peak_bf16", "peak_int8", "hbm_bandwidth", "ici_links")
_BYTES = ("hbm_bytes", "vmem_bytes")


def _details(hardware: Hardware) -> Any:
    from rich.table import Table

    table = Table(
        title="\none device", title_justify="left", box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0)
    )
    for name in ("", "value", "source"):
        table.add_column(name)
    for field in dataclasses.fields(hardware):
        if field.name not in ("source", "generation"):
            value = _value(field.name, getattr(hardware, field.name))
            table.add_row(field.name, value, hardware.source.get(field.name, ""))
    return table


def _value(field: str, value: Any) -> str:
    if value is None:
        return "–"
    if field in _BYTES:
        return f"{value / 2**30:.2f} GiB" if value >= 2**30 else f"{value / 2**20:.0f} MiB"
    if field in ("peak_bf16", "peak_f32"):
        return f"{value / 1e12:.0f} TFLOP/s"
    if field == "peak_int8":
        return f"{value / 1e12:.0f} TOP/s"
    if field in ("hbm_bandwidth", "ici_bandwidth"):
        return f"{value / 1e9:.0f} GB/s"
    return f"{value / 1e6:.0f} MHz" if field == "clock_hz" else str(value)


def _fields(hardware: Hardware | None) -> dict[str, Any] | None:
    if hardware is None:
        return None
    listed = {field.name: getattr(hardware, field.name) for field in dataclasses.fields(hardware)}
    return listed | {"source": dict(hardware.source)}
