"""The options of ``systolic tf scan`` and ``systolic tf run``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def add_tf(commands: argparse._SubParsersAction) -> None:
    """Add ``tf`` and the commands below it."""
    about = "scripts of TensorFlow 1, unmodified: what they use, and how to run them"
    top = commands.add_parser("tf", help=about, description=about[0].upper() + about[1:] + ".")
    below = top.add_subparsers(dest="tf_command", metavar="COMMAND", required=True)

    about = "names of TensorFlow that a script uses, and what to use instead of those that are not served"
    scan = below.add_parser("scan", help=about, description=about[0].upper() + about[1:] + ". Nothing is run.")
    scan.add_argument("path", metavar="PATH", help="a Python file, or a folder of them")
    scan.add_argument("--json", metavar="PATH", help="write the report as JSON; '-' for stdout, and nothing else there")
    scan.set_defaults(run=_scan, command="tf scan")

    about = "run a script of TensorFlow 1 as it is"
    run = below.add_parser(
        "run",
        help=about,
        description=about[0].upper() + about[1:] + ".",
        usage="systolic tf run [-h] [--target NAME] [--debug] (SCRIPT.py | -m MODULE) [-- FLAG …]",
        epilog="What follows -- are the script's own flags.",
    )
    run.add_argument("script", nargs="?", metavar="SCRIPT.py", help="the script; its folder goes first on sys.path")
    run.add_argument("-m", dest="module", metavar="MODULE", help="a module instead, as python -m runs it")
    run.add_argument("--target", metavar="NAME", help="where the steps of a TPUEstimator run: cpu, cpu:8, gpu, tpu")
    run.set_defaults(run=_run, command="tf run")
    for command in (scan, run):
        command.add_argument("--debug", action="store_true", help="show tracebacks and informational messages")


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Our arguments, and those of the script that is run.

    Example:
        >>> split(["tf", "run", "train.py", "--target", "cpu:8", "--", "--steps=3"])
        (['tf', 'run', 'train.py', '--target', 'cpu:8'], ['--steps=3'])
    """
    given = list(arguments)
    if given[:2] != ["tf", "run"] or "--" not in given:
        return given, []
    at = given.index("--")
    return given[:at], given[at + 1 :]


def _scan(options: argparse.Namespace) -> int:
    from systolic.cli._tf import scan

    return scan(options)


def _run(options: argparse.Namespace) -> int:
    from systolic.cli._tf import run

    return run(options)
