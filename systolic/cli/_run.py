"""``systolic train``, ``evaluate``, ``predict`` and ``export``."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import pathlib
from collections.abc import Iterator

from systolic._errors import InputError
from systolic.cli._locate import Located, locate, parse_arguments
from systolic.cli._output import Stream, check_writable, complain, console, emit, stdout, unwritable
from systolic.cli._plain import plain


def train(options: argparse.Namespace) -> int:
    """Train; with ``--eval-every``, evaluate that often."""
    located = _locate(options)
    estimator = located.estimator
    train_fn = located.input_fn("train", options.data)
    if options.eval_every is None:
        for name in ("eval_steps", "eval_data"):
            if getattr(options, name) is not None:
                raise InputError(f"--{name.replace('_', '-')}: wanted together with --eval-every STEPS")
        estimator.train(train_fn, steps=options.steps, max_steps=options.max_steps, epochs=options.epochs)
    else:
        until = options.max_steps if options.steps is None else estimator.step + options.steps
        if until is None:
            raise InputError("--eval-every: wanted together with --max-steps or --steps")
        estimator.train_and_evaluate(
            train_fn,
            located.input_fn("eval", options.eval_data),
            max_steps=until,
            eval_every=options.eval_every,
            eval_steps=options.eval_steps,
        )
    folder = estimator.config.model_dir
    if folder is None:
        console().print("note: this Estimator has no model_dir, so nothing was kept", style="yellow")
    else:
        console().print(f"step {estimator.step}; summary: {folder / 'summary.html'}", soft_wrap=True)
    return 0


def evaluate(options: argparse.Namespace) -> int:
    """Print the metrics of the latest checkpoint."""
    located = _locate(options)
    metrics = located.estimator.evaluate(located.input_fn("eval", options.data), steps=options.steps)
    step = located.estimator.step
    if options.json:
        emit(json.dumps({"step": step, "metrics": plain(metrics)}))
        return 0
    from rich.table import Table

    table = Table(title=f"step {step}", title_justify="left", box=None, pad_edge=False, show_header=False)
    for name, value in metrics.items():
        table.add_row(name, f"{value:.6g}")
    console().print(table)
    return 0


def predict(options: argparse.Namespace) -> int:
    """Write one JSON object a line, as the rows are computed."""
    if options.output not in (None, "-"):
        check_writable("--output", options.output)
    located = _locate(options)
    input_fn = located.input_fn("predict", options.data)
    rows = located.estimator.predict(input_fn)
    with contextlib.closing(rows), _writer(options.output) as file:
        for row in itertools.islice(rows, options.limit):
            file.write(json.dumps(plain(row), allow_nan=False) + "\n")
    return 0


def export(options: argparse.Namespace) -> int:
    """Export the latest checkpoint."""
    sizes = None
    if options.batch_sizes is not None:
        try:
            sizes = [int(size) for size in options.batch_sizes.split(",")]
        except ValueError:
            raise InputError(f"--batch-sizes: saw {options.batch_sizes!r}, wanted numbers, as in 1,8,64") from None
    platforms = [name.strip() for name in options.platforms.split(",") if name.strip()]
    folder = _locate(options).estimator.export(options.directory, batch_sizes=sizes, platforms=platforms)
    console().print(f"exported to {folder}", soft_wrap=True)
    return 0


def _locate(options: argparse.Namespace) -> Located:
    arguments = parse_arguments(options.arg, model_dir=options.model_dir, target=options.target)
    return locate(options.file, arguments)


@contextlib.contextmanager
def _writer(path: str | None) -> Iterator[Stream]:
    if path is None or path == "-":
        out = stdout()
        yield out
        out.flush()  # a closed pipe shows here, where it is handled, not at exit
        return
    wanted = pathlib.Path(path).expanduser()
    plain = wanted.is_file() or not wanted.exists()  # else a pipe, which takes the rows as they come
    rows = wanted.with_name(f"{wanted.name}.partial") if plain else wanted
    try:
        file = open(rows, "w", encoding="utf-8")  # noqa: SIM115  (closed below)
    except OSError as error:
        raise unwritable("--output", path, error) from error
    out = Stream("--output", path, file)
    try:
        yield out
        out.flush()
        if plain:
            os.replace(rows, wanted)
    finally:
        with contextlib.suppress(OSError):  # told by the flush
            file.close()
        if plain and rows.exists():
            if rows.stat().st_size:
                complain(f"the rows up to here are in {rows}")
            else:
                rows.unlink()
