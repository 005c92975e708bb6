"""The options of the commands below ``systolic tf``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from systolic.cli._check_options import add_check_options


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

    about = "compile what a script would run on TPUs, without a TPU and without running it"
    check = below.add_parser(
        "check",
        help=about,
        description=about[0].upper()
        + about[1:]
        + ". Each mode's graph is built, by the script, and compiled by the real TPU "
        "compiler: does it fit, or why not.",
        usage="systolic tf check [-h] --target NAME[,NAME…] [options] (SCRIPT.py | -m MODULE) [-- FLAG …]",
        epilog="What follows -- are the script's own flags. Its folders are left alone.",
    )
    check.add_argument("script", nargs="?", metavar="SCRIPT.py", help="the script; its folder goes first on sys.path")
    check.add_argument("-m", dest="module", metavar="MODULE", help="a module instead, as python -m runs it")
    add_check_options(check)
    check.set_defaults(run=_check, command="tf check")
    for command in (scan, run, check):
        command.add_argument("--debug", action="store_true", help="show tracebacks and informational messages")


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Our arguments, and those of the script that is run.

    Example:
        >>> split(["tf", "run", "train.py", "--target", "cpu:8", "--", "--steps=3"])
        (['tf', 'run', 'train.py', '--target', 'cpu:8'], ['--steps=3'])
    """
    given = list(arguments)
    if given[:2] not in (["tf", "run"], ["tf", "check"]) or "--" not in given:
        return given, []
    at = given.index("--")
    return given[:at], given[at + 1 :]


def _scan(options: argparse.Namespace) -> int:
    from systolic.cli._tf import scan

    return scan(options)


def _run(options: argparse.Namespace) -> int:
    from systolic.cli._tf import run

    return run(options)


def _check(options: argparse.Namespace) -> int:
    from systolic.cli._tf import check

    return check(options)
