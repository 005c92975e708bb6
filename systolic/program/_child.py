"""The compiler's own process: ``python -m systolic.program._child FOLDER``.

A failed check inside the TPU compiler aborts the process it runs in, and some programs keep it busy for ever or fill
the memory; so it runs here, where it can be stopped, and everything it prints goes to a log. The folder holds the job
(``job.json``, ``program.bin``); the result appears in it as ``result.json``, ``hlo.txt.gz`` and ``executable.bin``.
"""

from __future__ import annotations

import ctypes
import gzip
import json
import os
import pathlib
import signal
import sys
from typing import Any

from systolic.target import compiler_options

_PR_SET_PDEATHSIG = 1


def main(folder: pathlib.Path) -> int:
    """Compile the job in ``folder``; returns the exit status (0 when a result was written)."""
    job = json.loads((folder / "job.json").read_text())
    _die_with(job["parent"])
    _stage(folder, "starting the compiler")
    import jax

    try:
        lowered = _lower(job, (folder / "program.bin").read_bytes())
        _stage(folder, "compiling")
        compiled, notes = _compile(lowered, job["depth"])
    except jax.errors.JaxRuntimeError as error:
        _tell(folder, "error", str(error))
        if "RESOURCE_EXHAUSTED" in str(error) and job["depth"] != "schedule":
            _stage(folder, "looking for the largest buffers")
            _schedule_anyway(lowered)
        return 0
    except Exception as error:  # a full disk, a package that is missing: nothing that the compiler said
        _tell(folder, "failed", f"{type(error).__name__}: {error}")
        return 0
    if job["depth"] != "schedule":
        _stage(folder, "reading the result")
        _write_result(folder, compiled, notes)
    else:
        _write(folder / "result.json", json.dumps({}).encode())
    return 0


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies, by whatever signal."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the request was made
        os._exit(1)


def _lower(job: dict[str, Any], blob: bytes) -> Any:
    import jax

    from systolic.target import Target, compile_mesh

    exported = jax.export.deserialize(bytearray(blob))
    mesh = compile_mesh(Target(job["target"]), job["axes"])

    def program(*leaves: Any) -> Any:
        return exported.call(*leaves)

    program.__name__ = program.__qualname__ = job["name"]
    jitted = jax.jit(
        program, in_shardings=exported.in_shardings_jax(mesh), donate_argnums=tuple(job["donated"]), keep_unused=True
    )
    return jitted.trace(*(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in exported.in_avals)).lower(
        lowering_platforms=("tpu",)
    )


def _compile(lowered: Any, depth: str) -> tuple[Any, tuple[str, ...]]:
    """The compiled program, and notes on it."""
    import jax

    for options in compiler_options(depth):
        try:
            return lowered.compile(compiler_options=options), ()
        except jax.errors.JaxRuntimeError as error:
            if "No such compile option" not in str(error):
                raise
    note = f"this libtpu knows no option for depth {depth!r}: compiled with its own defaults, which takes longer"
    return lowered.compile(), (note,)


def _schedule_anyway(lowered: Any) -> None:
    """Compile without regard to the memory limit; the parent takes the schedule from the dump and ends this process."""
    import jax

    try:
        _compile(lowered, "schedule")
    except jax.errors.JaxRuntimeError as error:
        print("no schedule without the memory limit:", error, file=sys.stderr)


def _tell(folder: pathlib.Path, key: str, message: str) -> None:
    """End without a program: ``error`` when the compiler refused it, ``failed`` when it never got to judge."""
    _write(folder / "result.json", json.dumps({key: message}).encode())


def _write_result(folder: pathlib.Path, compiled: Any, notes: tuple[str, ...]) -> None:
    from systolic.program._executable import MemoryStats
    from systolic.program._serialize import serialize

    stats = MemoryStats.of(compiled.memory_analysis())
    cost = compiled.cost_analysis() or {}
    cost = cost[0] if isinstance(cost, list) else cost
    _write(folder / "hlo.txt.gz", gzip.compress(compiled.as_text().encode(), compresslevel=3))
    _write(folder / "executable.bin", serialize(compiled))
    totals = {name: float(value) for name, value in cost.items() if "{" not in name}  # the rest is per operand
    result = {"memory": vars(stats), "cost": totals, "notes": notes}
    _write(folder / "result.json", json.dumps(result).encode())


def _stage(folder: pathlib.Path, stage: str) -> None:
    _write(folder / "stage", stage.encode())


def _write(path: pathlib.Path, data: bytes) -> None:
    partial = path.with_suffix(".partial")
    partial.write_bytes(data)
    os.replace(partial, path)


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
