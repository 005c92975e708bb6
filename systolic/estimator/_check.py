"""Checking an Estimator: all its Programs, compiled for targets that need not be here."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from systolic._arguments import whole
from systolic._errors import InputError, TargetError
from systolic.check import BatchSearch, CheckOptions, CheckReport, check_programs, resolve_targets
from systolic.data import Batches
from systolic.estimator._engine import Engine
from systolic.estimator._mode import Mode
from systolic.program import Program
from systolic.target import Target

PROGRAMS = ("init", *(mode.value for mode in Mode))


def check(
    engine: Engine,
    input_fn: Any,
    target: str | Target | Sequence[str | Target],
    options: CheckOptions,
    programs: Sequence[str] | None = None,
    batch_size: int | None = None,
) -> CheckReport:
    """Compile the Programs for examples like those of ``input_fn`` (only its first element is read).

    Args:
        programs: some of ``init``, ``train``, ``eval``, ``predict``; default: the three modes
            (``init`` runs once, and what it needs is less than what training needs).
        batch_size: global batch size to check instead of the Estimator's own three.
    """
    if not isinstance(programs, Iterable | None):
        raise InputError(f"check(programs): saw {programs!r}, wanted some of {', '.join(PROGRAMS)}")
    programs = PROGRAMS[1:] if programs is None else (programs,) if isinstance(programs, str) else tuple(programs)
    if batch_size is not None:
        whole("check(batch_size)", batch_size)
    if not programs or (unknown := [name for name in programs if name not in PROGRAMS]):
        seen = repr(unknown[0]) if programs else "none"
        raise InputError(f"check(programs): saw {seen}, wanted some of {', '.join(PROGRAMS)}")
    size, parts = engine.batch_sizes[Mode.TRAIN], engine.steps.accumulate
    with contextlib.closing(
        Batches(input_fn, size, tail="pad", epochs=1, spec=engine.spec, notices=engine.notices)
    ) as batches:
        spec = batches.spec
    sizes = engine.batch_sizes if batch_size is None else dict.fromkeys(Mode, batch_size)
    targets = resolve_targets(target)
    for mode in Mode:
        if mode.value in programs:
            argument = f"Estimator({mode.value}_batch_size)" if batch_size is None else "check(batch_size)"
            for each in targets:
                refuse_indivisible(argument, sizes[mode], each, parts if mode is Mode.TRAIN else 1)
    wanted = {name: p for name, p in engine.program_set(spec, sizes).items() if name in programs}

    def resized(mode: Mode) -> Callable[[int], Program]:
        return lambda size: engine.program(mode.value, spec, size)

    searches = {
        mode.value: BatchSearch(resized(mode), sizes[mode], per_device=parts if mode is Mode.TRAIN else 1)
        for mode in Mode
        if mode.value in wanted
    }
    return check_programs(wanted, targets, options, batches=searches)


def refuse_indivisible(argument: str, size: int, target: Target, parts: int) -> None:
    """TargetError where the devices, each with so many microbatches, do not divide a batch."""
    if size % (ways := target.num_devices * parts):
        below = size // ways * ways
        per = f"{target.num_devices} device{'s' * (target.num_devices > 1)}" + (
            f" × {parts} microbatches" if parts > 1 else ""
        )
        raise TargetError(
            f"{argument}: saw {size}, which {per} of {target.name} do not divide; use {f'{below} or ' if below else ''}{below + ways}"
        )
