"""``systolic doctor``: what this machine has, and what is known to go wrong with it."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable, Iterator

from systolic.cli import _examine as examine
from systolic.cli._finding import Finding
from systolic.cli._output import console, emit

_MARK = {"ok": ("✓", "green"), "note": ("•", "yellow"), "problem": ("✗", "bold red")}


def doctor(options: argparse.Namespace) -> int:
    """Look at everything and tell it; 1 if something is wrong."""
    sections: dict[str, Callable[[], Iterator[Finding]]] = {
        "machine": examine.machine,
        "packages": examine.packages,
        "conflicts": examine.conflicts,
        "devices": examine.devices,
        "cache": examine.cache,
        "compiler": lambda: examine.compiler(compile_one=not options.no_compile),
    }
    out, found = console(), []
    for title, look in sections.items():
        if not options.json:
            out.print(f"[bold]{title}")
        for finding in look():
            found.append((title, finding))
            if not options.json:
                mark, style = _MARK[finding.level]
                out.print(f"  [{style}]{mark}[/] {finding.name:<20} ", end="")
                out.print(finding.text, markup=False, soft_wrap=True)
                if finding.advice:
                    out.print(f"    {finding.advice}", style=style, markup=False, soft_wrap=True)
    problems = sum(finding.level == "problem" for _, finding in found)
    if options.json:
        listed = [{"section": title} | dataclasses.asdict(finding) for title, finding in found]
        emit(json.dumps({"ok": not problems, "problems": problems, "findings": listed}, indent=2))
    else:
        out.print(f"\n{problems} problem{'s' if problems != 1 else ''}" if problems else "\nno problems found")
    return 1 if problems else 0
