"""``systolic tf scan``, ``systolic tf run`` and ``systolic tf check``."""

from __future__ import annotations

import argparse
import json
import logging
import sys

from systolic._errors import InputError
from systolic._log import logger
from systolic.cli._check import check_places, target_names, write_report
from systolic.cli._output import check_writable, complain, discard_stdout, emit, write_text


def scan(options: argparse.Namespace) -> int:
    """Tell what a script uses; the exit status is the report's."""
    if options.json not in (None, "-"):
        check_writable("--json", options.json)
    from systolic.tf import scan

    report = scan(options.path)
    as_json = json.dumps(report.to_json(), indent=2) if options.json is not None else ""
    if options.json not in (None, "-"):
        write_text("--json", options.json, as_json + "\n")
    try:
        emit(as_json if options.json == "-" else str(report))
    except BrokenPipeError:
        discard_stdout()  # the exit status is still the report's
    return report.exit_code


def run(options: argparse.Namespace) -> int:
    """Run a script; the exit status is its own."""
    _one_of(options)
    from systolic.tf import run_module, run_script

    _leave_logging_to_the_script()
    try:
        if options.module is not None:
            run_module(options.module, options.flags, target=options.target)
        else:
            run_script(options.script, options.flags, target=options.target)
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return int(ended.code or 0)
        complain(str(ended.code))  # as Python does
        return 1
    except Exception as error:
        from systolic.tf import graph_error

        if told := graph_error(error):
            raise told from error
        raise
    return 0


def check(options: argparse.Namespace) -> int:
    """Compile what a script would run; the exit status is the report's."""
    _one_of(options)
    targets = target_names("--target", options.target, "v5e-8,v6e-4")
    check_places(options)
    from systolic.check import CheckOptions
    from systolic.tf import check_script

    checking = CheckOptions(depth=options.depth, time_limit=options.time_limit, cache=not options.no_cache)
    report = check_script(options.script, options.flags, module=options.module, target=targets, options=checking)
    write_report(report, options)
    return int(report.exit_code)


def _one_of(options: argparse.Namespace) -> None:
    if (options.script is None) == (options.module is None):
        seen = "neither" if options.script is None else "both"
        raise InputError(f"SCRIPT.py, -m: saw {seen}, wanted one of them: the script, or a module")


def _leave_logging_to_the_script() -> None:
    """Our handler is for our notes; TensorFlow and the script set up their own, as in a process of theirs."""
    root = logging.getLogger()
    for handler in list(root.handlers):
        if type(handler) is logging.StreamHandler and handler.stream is sys.stderr:
            root.removeHandler(handler)
            logger.addHandler(handler)
            logger.propagate = False
