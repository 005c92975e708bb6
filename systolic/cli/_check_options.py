"""Options of every command that checks."""

from __future__ import annotations

import argparse

_DEPTHS = ("schedule", "fast", "full")


def add_check_options(command: argparse.ArgumentParser) -> None:
    """Targets, depth, limits, cache, and where the report goes."""
    command.add_argument(
        "--target",
        required=True,
        metavar="NAME[,NAME…]",
        help="what to compile for, as in v5e-8,v6e-4; see 'systolic targets'",
    )
    command.add_argument(
        "--depth",
        choices=_DEPTHS,
        default="fast",
        help="schedule: seconds, memory estimated; fast: a verdict; full: the effort of a real run (default: %(default)s)",
    )
    command.add_argument(
        "--json", metavar="PATH", help="write the report as JSON; '-' for stdout, and nothing else there"
    )
    command.add_argument("--html", metavar="PATH", help="write the report as a page")
    command.add_argument(
        "--time-limit", type=_seconds, default=600.0, metavar="SECONDS", help="for each compile (default: %(default)g)"
    )
    command.add_argument("--no-cache", action="store_true", help="neither read nor write the cache of compiles")


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value > 0:
        raise argparse.ArgumentTypeError(f"saw {text!r}, wanted seconds above 0")
    return value
