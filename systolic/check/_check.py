"""Check programs against targets: does it compile, does it fit, what does it cost."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from systolic._arguments import whole
from systolic._errors import InputError
from systolic.check._analyse import analyse
from systolic.check._fit import BatchSearch, largest_batch
from systolic.check._report import CheckReport
from systolic.check._result import ProgramCheck, Verdict
from systolic.program import CompileOptions, Program
from systolic.target import Target


@dataclasses.dataclass(frozen=True)
class CheckOptions:
    """How to check.

    Attributes:
        depth: ``"schedule"``, ``"fast"`` or ``"full"``, as in :class:`systolic.program.CompileOptions`.
        time_limit: seconds for each compile.
        memory_limit: bytes of this machine's memory for each compile; ``None``: 80 % of what is free.
        cache: use the cache of described compiles.
        jobs: how many compiles run at once.
        on_progress: called as ``on_progress(program, target, seconds, stage)`` while compiles run, from their threads.
    """

    depth: str = "fast"
    time_limit: float = 600.0
    memory_limit: int | None = None
    cache: bool = True
    jobs: int = 1
    on_progress: Callable[[str, str, float, str], None] | None = dataclasses.field(
        default=None, compare=False, repr=False
    )

    def __post_init__(self) -> None:
        whole("CheckOptions(jobs)", self.jobs)
        self.compile_options()

    def compile_options(self, on_progress: Callable[[float, str], None] | None = None) -> CompileOptions:
        """The same, for one compile."""
        return CompileOptions(
            depth=self.depth,
            time_limit=self.time_limit,
            memory_limit=self.memory_limit,
            cache=self.cache,
            on_progress=on_progress,
        )


def check_programs(
    programs: Mapping[str, Program],
    targets: Sequence[str | Target] | str | Target,
    options: CheckOptions | None = None,
    *,
    batches: Mapping[str, BatchSearch] | None = None,
) -> CheckReport:
    """Compile every program for every target and explain the results.

    Args:
        programs: by the name that the report gives them, such as the mode.
        targets: one or several.
        options: depth, limits, jobs.
        batches: for programs whose batch size can be changed: when one does not fit, the largest batch that does is
            searched for.

    Returns:
        The report: one result per (program, target), targets varying slowest. A program that does not compile is a
        result, not an exception.

    Raises:
        TargetError: no such target.
        InputError: nothing to check.
    """
    options = options or CheckOptions()
    wanted = resolve_targets(targets)
    if not isinstance(options, CheckOptions):
        raise InputError(f"check(options): saw {options!r}, wanted systolic.check.CheckOptions(...)")
    if not programs:
        raise InputError("check(programs): saw none, wanted at least one")
    stop = threading.Event()

    def run(job: tuple[str, Target]) -> ProgramCheck:
        name, target = job
        compile_options = options.compile_options(_reporter(name, target, options, stop))
        found = dataclasses.replace(analyse(programs[name], target, compile_options), program=name)
        search = (batches or {}).get(name)
        if found.verdict is Verdict.TOO_LARGE and search is not None and not target.attached:
            found = dataclasses.replace(found, fit=largest_batch(search, target, compile_options, found))
        return found

    jobs = [(name, target) for target in wanted for name in programs]
    if options.jobs == 1 or len(jobs) == 1:
        return CheckReport(tuple(map(run, jobs)))
    with ThreadPoolExecutor(min(options.jobs, len(jobs))) as pool:
        try:
            return CheckReport(tuple(pool.map(run, jobs)))
        except BaseException:
            stop.set()  # the other compiles end at their next report
            raise


def resolve_targets(targets: object) -> list[Target]:
    """One or several, or names with commas between them, each once: two names of one target are one."""
    if isinstance(targets, str | Target):
        targets = targets.split(",") if isinstance(targets, str) else [targets]
    if not isinstance(targets, Iterable) or not (listed := list(targets)):
        raise InputError(f"check(target): saw {targets!r}, wanted one or more targets, such as 'v5e-8'")
    found: dict[str, Target] = {}
    for target in (Target(each.strip() if isinstance(each, str) else each) for each in listed):
        found.setdefault(target.name, target)
    return list(found.values())


def check(
    fn: Callable[..., Any],
    *args: Any,
    target: str | Target | Sequence[str | Target],
    options: CheckOptions | None = None,
    name: str | None = None,
    donate: Sequence[int] = (),
    axes: Mapping[str, int] | None = None,
    in_specs: Sequence[Any] | None = None,
    out_specs: Any = None,
) -> CheckReport:
    """Check one function, plain or jitted, at the shapes of example arguments.

    Args:
        fn: pure function of pytrees of arrays.
        *args: example arguments: arrays or ``jax.ShapeDtypeStruct``; only shapes and dtypes count.
        target: one or several targets.
        options: depth, limits, jobs.
        name: what the report calls it; the function's name by default.
        donate, axes, in_specs, out_specs: as for :class:`systolic.program.Program`.
    """
    program = Program(fn, *args, name=name, donate=donate, axes=axes, in_specs=in_specs, out_specs=out_specs)
    return check_programs({program.name: program}, target, options)


class _Stopped(Exception):
    """Another compile of the same check failed or was interrupted."""


def _reporter(name: str, target: Target, options: CheckOptions, stop: threading.Event) -> Callable[[float, str], None]:
    def report(seconds: float, stage: str) -> None:
        if stop.is_set():
            raise _Stopped
        if options.on_progress is not None:
            options.on_progress(name, target.name, seconds, stage)

    return report
