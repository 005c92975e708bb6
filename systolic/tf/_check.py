"""Check a script of TensorFlow 1 for TPUs that are not there: it runs up to each mode's graph, which is compiled instead of run."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import dataclasses
import logging
import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from systolic._errors import InputError
from systolic._log import logger
from systolic.check import CheckOptions, CheckReport, check_programs, resolve_targets
from systolic.target import Target
from systolic.tf._collect import Reached, collecting
from systolic.tf._estimator import tpu_estimator
from systolic.tf._graph import GraphFunction, wide
from systolic.tf._script import run_module, run_script
from systolic.tf._system import switch_on

_MOST = 3  # calls of one method: a script that waits for a checkpoint that never comes asks again and again


def check_script(
    path: str | None,
    arguments: Sequence[str] = (),
    *,
    module: str | None = None,
    target: str | Target | Sequence[str | Target],
    options: CheckOptions | None = None,
) -> CheckReport:
    """Compile what a script would run on TPUs, for TPUs that need not be there.

    The script runs in a process of its own for each number of devices, with that many cores. What its estimators would
    train, evaluate and predict is compiled, not run, and their folders are left alone: they begin with new variables in a
    temporary one.

    Args:
        path: of the script; or ``None``, and ``module`` names a module.
        arguments: of the script.
        target: one or several, described or attached.
        options: depth, limits, cache; ``jobs`` and ``on_progress`` do not apply.

    Returns:
        One result for each program and target; a program is named after the mode: ``train``, ``eval``, ``predict``, or
        ``computation`` for one that was built by hand.

    Raises:
        InputError: the script came to its end, or failed, before it had anything to run on a TPU.
    """
    targets = resolve_targets(target)
    options = dataclasses.replace(options or CheckOptions(), jobs=1, on_progress=None)
    groups: dict[int, list[str]] = collections.defaultdict(list)
    for each in targets:
        groups[each.num_devices].append(each.name)
    reports = [_in_a_process(path, module, list(arguments), names, options) for names in groups.values()]
    order = [each.name for each in targets]
    results = [result for report in reports for result in report.results]
    return CheckReport(tuple(sorted(results, key=lambda result: order.index(result.target))))


def _in_a_process(*job: Any) -> CheckReport:
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, context) as pool:
        return pool.submit(_check, *job).result()


def _check(
    path: str | None, module: str | None, arguments: list[str], targets: list[str], options: CheckOptions
) -> CheckReport:
    """In the process of one number of devices."""
    os.dup2(2, 1)  # what the script prints is not the report
    for name in ("tensorflow", "absl"):  # what they say of sessions that are closed before they run
        logging.getLogger(name).disabled = True
    collected = _Collected()
    switch_on(targets[0], described=True)
    ended = ""
    with _instead_of_running(collected):
        try:
            if path is not None:
                run_script(path, arguments, target=None)
            else:
                run_module(str(module), arguments, target=None)
        except Reached:
            pass
        except SystemExit as error:
            ended = f"it ended with {error.code!r}" if error.code else ""
        except Exception as error:
            ended = f"{type(error).__name__}: {error}".splitlines()[0]
            if not collected.functions:
                raise
    if not collected.functions:
        raise InputError(
            f"{path or module}: it has nothing to run on a TPU{f' ({ended})' if ended else ''}; pass the flags that make it "
            "train there, such as --use_tpu=True"
        )
    if ended:
        logger.warning("the script failed after the last of these programs was built, without their results: %s", ended)
    with wide():
        programs = {name: function.program() for name, function in collected.functions.items()}
        return check_programs(programs, targets, options)


class _Collected:
    """Functions by the mode that builds them."""

    def __init__(self) -> None:
        self.functions: dict[str, GraphFunction] = {}
        self.mode = "computation"
        self.calls: collections.Counter[str] = collections.Counter()

    def __call__(self, function: GraphFunction) -> None:
        name = self.mode
        while name in self.functions and self.calls[self.mode] <= 1:  # several in one graph
            name += "'"
        self.functions.setdefault(name, dataclasses.replace(function, module=function.module.without_host_calls()))


@contextlib.contextmanager
def _instead_of_running(collected: _Collected) -> Iterator[None]:
    """Estimators build their graphs, in a temporary folder, and come back without results."""
    kind = tpu_estimator().TPUEstimator
    with tempfile.TemporaryDirectory(prefix="systolic-check-") as folder, collecting(collected):
        kind.__init__ = _in_folder(kind.__init__, folder)
        for name, mode, result in (
            ("train", "train", _itself),
            ("evaluate", "eval", _metrics),
            ("predict", "predict", _rows),
        ):
            setattr(kind, name, _built_only(getattr(kind, name), collected, mode, result))
        yield


def _in_folder(make: Callable[..., None], folder: str) -> Callable[..., None]:
    def made(
        self: Any, model_fn: Any = None, model_dir: Any = None, config: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        del model_dir
        config = None if config is None else config.replace(model_dir=tempfile.mkdtemp(dir=folder))
        make(self, model_fn, None, config, *args, **kwargs)

    return made


def _built_only(
    run: Callable[..., Any], collected: _Collected, mode: str, result: Callable[[Any], Any]
) -> Callable[..., Any]:
    def built(self: Any, *args: Any, **kwargs: Any) -> Any:
        collected.calls[mode] += 1
        if collected.calls[mode] > _MOST:
            raise Reached
        before, collected.mode = collected.mode, mode
        try:
            for _ in run(self, *args, **kwargs) if mode == "predict" else (run(self, *args, **kwargs),):
                pass
        except BaseException as error:
            if mode not in collected.functions or isinstance(error, KeyboardInterrupt):
                raise
        finally:
            collected.mode = before
        return result(self)

    return built


def _itself(estimator: Any) -> Any:
    return estimator


def _metrics(estimator: Any) -> dict[str, float]:
    return collections.defaultdict(float, loss=0.0, global_step=0)


def _rows(estimator: Any) -> Iterator[Any]:
    return iter(())
