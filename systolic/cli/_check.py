"""``systolic check``."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from systolic._errors import InputError
from systolic.cli._locate import locate, parse_arguments
from systolic.cli._output import check_writable, console, discard_stdout, emit, write_text
from systolic.cli._progress import CompileProgress
from systolic.target import Target

if TYPE_CHECKING:
    from systolic.check import CheckReport


def check(options: argparse.Namespace) -> int:
    """Check an Estimator for described targets; the exit status is the report's.

    All that can be wrong with the options is told before the user's file is imported and anything is compiled.
    """
    targets = [Target(name) for name in target_names("--target", options.target, "v5e-8,v6e-4")]
    programs = None if options.programs is None else target_names("--programs", options.programs, "train,predict")
    check_places(options)
    from systolic.check import CheckOptions

    located = locate(options.file, parse_arguments(options.arg))
    input_fn = located.input_fn("train", options.data)
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
    write_report(report, options)
    return int(report.exit_code)


def target_names(option: str, text: str, example: str) -> list[str]:
    """The names in a list with commas, each once."""
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise InputError(f"{option}: saw {text!r}, wanted one or more names, as in {example}")
    return names


def check_places(options: argparse.Namespace) -> None:
    """Refuse places for the report that cannot be written."""
    places = {"--json": options.json, "--html": options.html}
    if options.json is not None and options.json == options.html:
        raise InputError(f"--json, --html: saw {options.json!r} for both; name another place for one of them")
    for option, path in places.items():
        if path is not None and path != "-":
            check_writable(option, path)


def write_report(report: CheckReport, options: argparse.Namespace) -> None:
    """Files first: whoever reads stdout may go away."""
    as_json = json.dumps(report.to_json(), indent=2) if options.json is not None else ""
    if options.json not in (None, "-"):
        write_text("--json", options.json, as_json + "\n")
    if options.html not in (None, "-"):
        write_text("--html", options.html, report.html())
    try:
        if options.json == "-":
            emit(as_json)
        elif options.html == "-":
            emit(report.html().rstrip("\n"))
        else:
            out = console()
            out.print(report)
            if options.html is not None:
                out.print(f"report: {options.html}", soft_wrap=True, markup=False)
    except BrokenPipeError:
        discard_stdout()  # the exit status is still the report's
