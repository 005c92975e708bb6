"""The options of every command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from systolic.cli._check_options import add_check_options
from systolic.cli._tf_parser import add_tf, split

_FILE = "a Python file and the name in it of an Estimator, or of a function that makes one"


def parser() -> argparse.ArgumentParser:
    """The parser of the command line; ``options.run(options)`` runs the command that was chosen."""
    from systolic import __version__

    top = argparse.ArgumentParser(
        prog="systolic",
        description="Programs compiled whole, with static shapes: check them against the real TPU compiler without a TPU; "
        "train, evaluate, predict, export.",
        epilog="FILE.py:NAME is an Estimator or a function that makes one. Its data come from train_input_fn, "
        "eval_input_fn and predict_input_fn in the same file (NAME_train_input_fn and so on go first), or from --data.",
    )
    top.add_argument("--version", action="version", version=f"systolic {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for add in (_add_check, _add_train, _add_evaluate, _add_predict, _add_export, _add_targets, _add_doctor):
        command = add(commands)
        command.add_argument("--debug", action="store_true", help="show tracebacks and informational messages")
    add_tf(commands)
    return top


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options in ``arguments``, those of the process by default; ``flags`` are a script's own, after ``--``."""
    given, flags = split(sys.argv[1:] if arguments is None else arguments)
    options = parser().parse_args(given)
    options.flags = flags
    return options


def _add_check(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    command = _command(
        commands, "check", "compile with the real TPU compiler, without a TPU: does it fit, or why not", _check
    )
    command.add_argument("file", metavar="FILE.py:NAME", help=_FILE)
    add_check_options(command)
    command.add_argument(
        "--programs", metavar="NAME[,NAME…]", help="some of init,train,eval,predict (default: train,eval,predict)"
    )
    command.add_argument(
        "--batch-size", type=_count, metavar="N", help="global batch size instead of the Estimator's own"
    )
    command.add_argument(
        "--jobs", type=_count, default=1, metavar="N", help="compiles at a time (default: %(default)s)"
    )
    _add_data(command, "training data; only the shapes of its first element matter")
    _add_arguments(command)
    return command


def _add_train(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    command = _command(
        commands, "train", "train, from the latest checkpoint if there is one; evaluate now and then", _train
    )
    command.add_argument("file", metavar="FILE.py:NAME", help=_FILE)
    length = command.add_mutually_exclusive_group()
    length.add_argument("--steps", type=_count, metavar="N", help="how many more steps")
    length.add_argument("--max-steps", type=_count, metavar="N", help="up to this step in all")
    length.add_argument("--epochs", type=_count, metavar="N", help="passes over the data (default: one)")
    command.add_argument("--eval-every", type=_count, metavar="STEPS", help="evaluate that often, and at the end")
    command.add_argument("--eval-steps", type=_count, metavar="N", help="batches of an evaluation (default: all)")
    _add_data(command, "training data")
    command.add_argument("--eval-data", metavar="[FILE.py:]NAME", help="evaluation data (default: eval_input_fn)")
    _add_run(command)
    return command


def _add_evaluate(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    command = _command(commands, "evaluate", "exact metrics of the latest checkpoint", _evaluate)
    command.add_argument("file", metavar="FILE.py:NAME", help=_FILE)
    command.add_argument("--steps", type=_count, metavar="N", help="the first N batches (default: all)")
    command.add_argument("--json", action="store_true", help="print one JSON object")
    _add_data(command, "evaluation data")
    _add_run(command)
    return command


def _add_predict(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    command = _command(commands, "predict", "predictions of the latest checkpoint, one JSON object a line", _predict)
    command.add_argument("file", metavar="FILE.py:NAME", help=_FILE)
    command.add_argument("--output", metavar="PATH", help="where to write them (default: stdout)")
    command.add_argument("--limit", type=_count, metavar="N", help="stop after N rows")
    _add_data(command, "data (default: predict_input_fn, else eval_input_fn)")
    _add_run(command)
    return command


def _add_export(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    command = _command(
        commands, "export", "write weights and StableHLO of the latest checkpoint; sl.load reads them", _export
    )
    command.add_argument("file", metavar="FILE.py:NAME", help=_FILE)
    command.add_argument("directory", metavar="DIRECTORY", help="folder to write")
    command.add_argument("--batch-sizes", metavar="N[,N…]", help="of prediction (default: the Estimator's)")
    command.add_argument("--platforms", default="cpu,tpu", help="some of cpu,tpu,cuda,rocm (default: %(default)s)")
    _add_run(command)
    return command


def _add_targets(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    command = _command(commands, "targets", "the targets there are, and what a device of each can do", _targets)
    command.add_argument("name", nargs="?", metavar="NAME", help="one target or generation, in detail")
    command.add_argument("--json", action="store_true", help="print JSON")
    return command


def _add_doctor(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    command = _command(
        commands, "doctor", "versions, devices, cache, compiler and known conflicts of this machine", _doctor
    )
    command.add_argument("--json", action="store_true", help="print JSON")
    command.add_argument("--no-compile", action="store_true", help="do not try the TPU compiler (saves seconds)")
    return command


def _command(
    commands: argparse._SubParsersAction, name: str, about: str, run: Callable[[argparse.Namespace], int | None]
) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=about, description=about[0].upper() + about[1:] + ".")
    command.set_defaults(run=run)
    return command


def _add_data(command: argparse.ArgumentParser, about: str) -> None:
    command.add_argument("--data", metavar="[FILE.py:]NAME", help=f"input function for the {about}")


def _add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--arg",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="argument of the function that makes the Estimator, as in --arg width=128; may be repeated",
    )


def _add_run(command: argparse.ArgumentParser) -> None:
    command.add_argument("--model-dir", metavar="FOLDER", help="short for --arg model_dir=FOLDER")
    command.add_argument(
        "--target", metavar="NAME", help="where it runs: cpu, cpu:8, gpu, tpu; short for --arg target=NAME"
    )
    _add_arguments(command)


def _count(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"saw {text!r}, wanted a whole number of at least 1")
    return value


# Commands are imported when they run, so that --help and --version cost nothing.


def _check(options: argparse.Namespace) -> int:
    from systolic.cli._check import check

    return check(options)


def _train(options: argparse.Namespace) -> int:
    from systolic.cli._run import train

    return train(options)


def _evaluate(options: argparse.Namespace) -> int:
    from systolic.cli._run import evaluate

    return evaluate(options)


def _predict(options: argparse.Namespace) -> int:
    from systolic.cli._run import predict

    return predict(options)


def _export(options: argparse.Namespace) -> int:
    from systolic.cli._run import export

    return export(options)


def _targets(options: argparse.Namespace) -> int:
    from systolic.cli._targets import targets

    return targets(options)


def _doctor(options: argparse.Namespace) -> int:
    from systolic.cli._doctor import doctor

    return doctor(options)
