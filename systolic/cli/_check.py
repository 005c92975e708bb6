"""``systolic check``."""

from __future__ import annotations

import argparse
import json
import pathlib

from systolic._errors import InputError
from systolic.cli._locate import locate, parse_arguments
from systolic.cli._output import console, write_text
from systolic.cli._progress import CompileProgress
from systolic.target import Target


def check(options: argparse.Namespace) -> int:
    """Check an Estimator for described targets; the exit status is the report's."""
    names = [name.strip() for name in options.target.split(",") if name.strip()]
    if not names:
        raise InputError(f"--target: saw {options.target!r}, wanted one or more names, as in v5e-8,v6e-4")
    targets = [Target(name) for name in names]  # a wrong name is told before the user's file is imported
    from systolic.check import CheckOptions

    located = locate(options.file, parse_arguments(options.arg))
    input_fn = located.input_fn("train", options.data)
    programs = options.programs.split(",") if options.programs else None
    with CompileProgress() as progress:
        report = located.estimator.check(
            input_fn,
            target=targets,
            programs=programs,
            batch_size=options.batch_size,
            options=CheckOptions(
                depth=options.depth,
                time_limit=options.time_limit,
                cache=not options.no_cache,
                jobs=options.jobs,
                on_progress=progress,
            ),
        )
    if options.json == "-":
        print(json.dumps(report.to_json(), indent=2))
    else:
        console().print(report)
    if options.json and options.json != "-":
        write_text("--json", options.json, json.dumps(report.to_json(), indent=2) + "\n")
    if options.html:
        write_text("--html", options.html, report.html())
        if options.json != "-":
            console().print(f"report: {pathlib.Path(options.html)}", soft_wrap=True)
    return int(report.exit_code)
