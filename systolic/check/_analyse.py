"""From a compiled program to a :class:`ProgramCheck`."""

from __future__ import annotations

import dataclasses
import time

from systolic._errors import CompileError, CompileTimeoutError, TargetError
from systolic.check._flops import Flops, count_flops
from systolic.check._hlo import parse
from systolic.check._liveness import walk
from systolic.check._memory import MemoryReport, memory_report
from systolic.check._occupants import argument_totals, kept_totals
from systolic.check._result import ProgramCheck, StepBound, Verdict
from systolic.program import CompileOptions, CompilerCrash, Description, Program, ProgramTooLargeError
from systolic.target import HARDWARE, Hardware, Target


def analyse(program: Program, target: Target, options: CompileOptions) -> ProgramCheck:
    """Compile ``program`` for ``target`` and look at the result; a refusal is a result too.

    Errors of the program itself (a wrong shape in the user's code, for example) are raised.
    """
    started = time.monotonic()
    blank = ProgramCheck(
        program=program.name,
        target=target.name,
        devices=target.num_devices,
        verdict=Verdict.UNKNOWN,
        reason="",
        depth=options.depth,
        cache="",
        seconds=0.0,
        capacity=target.hardware.hbm_bytes if target.hardware else None,
    )
    check = _attempt(blank, program, target, options)
    return dataclasses.replace(check, seconds=time.monotonic() - started)


def _attempt(blank: ProgramCheck, program: Program, target: Target, options: CompileOptions) -> ProgramCheck:
    try:
        compiled = program.compile(target, options)
    except ProgramTooLargeError as error:
        return _too_large(blank, error, target)
    except (CompileTimeoutError, CompilerCrash, MemoryError) as error:  # no word about the program
        return dataclasses.replace(blank, verdict=Verdict.UNKNOWN, reason=str(error))
    except CompileError as error:
        return dataclasses.replace(blank, verdict=Verdict.REFUSED, reason=str(error))
    except TargetError as error:
        return dataclasses.replace(blank, verdict=Verdict.UNKNOWN, reason=str(error))
    if not isinstance(compiled, Description):
        return _attached(blank, compiled)
    memory, flops = _look(compiled, target)
    near = memory.estimated and memory.capacity and 0.75 * memory.capacity < memory.needed <= memory.capacity
    close = (
        ("close to the limit, and a schedule shows up to a quarter too little: confirm with depth fast",)
        if near
        else ()
    )
    fits = memory.fits is not False or compiled.memory is not None  # the allocator's word counts more than ours
    return dataclasses.replace(
        blank,
        verdict=Verdict.FITS if fits else Verdict.TOO_LARGE,
        reason="" if fits else _overflow(blank, memory.needed, memory),
        cache=compiled.cache,
        memory=memory,
        flops=flops,
        bound=_bound(flops, memory, target.hardware),
        needed=memory.needed,
        notes=close + compiled.notes + _notes(flops),
    )


def _look(compiled: Description, target: Target) -> tuple[MemoryReport, Flops]:
    module = parse(compiled.hlo_text)
    memory = memory_report(
        module,
        walk(module),
        names=compiled.argument_names,
        capacity=target.hardware.hbm_bytes if target.hardware else None,
        stats=compiled.memory,
    )
    return memory, count_flops(module)


def _too_large(blank: ProgramCheck, error: ProgramTooLargeError, target: Target) -> ProgramCheck:
    found = dataclasses.replace(blank, verdict=Verdict.TOO_LARGE, reason=str(error), needed=error.needed_bytes)
    if error.schedule is None:
        return found
    memory, flops = _look(error.schedule, target)
    return dataclasses.replace(
        found,
        cache=error.schedule.cache,
        memory=memory,
        flops=flops,
        bound=_bound(flops, memory, target.hardware),
        needed=error.needed_bytes or memory.needed,
        reason=_overflow(blank, error.needed_bytes or memory.needed, memory),
        notes=error.schedule.notes + _notes(flops),
    )


def _attached(blank: ProgramCheck, executable: object) -> ProgramCheck:
    stats = executable.memory
    memory = MemoryReport(
        capacity=blank.capacity,
        arguments=stats.argument,
        outputs=stats.output,
        aliased=stats.alias,
        temporaries=stats.temp,
        code=stats.code,
        peak=min(stats.peak or stats.total, stats.total),
        estimated=False,
        at_peak=(),
        inputs=(),
        padding=(),
        timeline=(),
    )
    note = "an attached target: compiled by JAX, without the schedule that a described target has"
    return dataclasses.replace(
        blank,
        verdict=Verdict.FITS,
        depth="full",
        cache=executable.cache,
        memory=memory,
        needed=memory.needed,
        notes=(note,),
    )


def _bound(flops: Flops, memory: MemoryReport, hardware: Hardware | None) -> StepBound | None:
    if hardware is None:
        return None
    moved = memory.arguments + memory.outputs
    return StepBound(matrix=flops.matrix / hardware.peak_bf16, memory=moved / hardware.hbm_bandwidth)


def _notes(flops: Flops) -> tuple[str, ...]:
    notes = []
    if flops.unknown_loops:
        notes.append(f"loops of unknown length counted once in the FLOPs: {', '.join(flops.unknown_loops[:5])}")
    if flops.kernels:
        notes.append(f"kernels not counted in the FLOPs: {', '.join(flops.kernels[:5])}")
    return tuple(notes)


def _overflow(blank: ProgramCheck, needed: int, memory: MemoryReport) -> str:
    gib = 1 << 30
    asked = f"{blank.program} does not fit {blank.target}: it needs {needed / gib:.2f} GiB per device"
    capacity = blank.capacity
    if capacity is None:
        return asked
    text = f"{asked}, {(needed - capacity) / gib:.2f} GiB more than the {capacity / gib:.2f} GiB that a device has"
    kept = kept_totals(memory) or argument_totals(memory)
    if sum(kept.values()) <= capacity:
        return text
    listed = ", ".join(f"{part} {total / gib:.2f} GiB" for part, total in kept.items() if total > 0.01 * capacity)
    larger = [name for name, chip in HARDWARE.items() if chip.hbm_bytes >= needed]
    advice = [f"a device with more memory ({', '.join(larger)})"] if larger else []
    if "state/opt_state" in kept:
        advice = ["an optimizer that keeps less (SGD, Adafactor)", "parameters of fewer bytes", *advice]
    whatever = ", whatever the batch size" if kept_totals(memory) else ""
    remedy = f": use {' or '.join(advice)}" if advice else ""
    return f"{text}. What it is given ({listed}) is too much by itself{whatever}{remedy}"
