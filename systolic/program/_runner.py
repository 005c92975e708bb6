"""Starts the compiler's process, watches its time and memory, and brings back what it made."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from systolic._errors import CompileTimeoutError
from systolic.program._errors import CompilerCrash, CompilerMemoryError
from systolic.program._job_folder import full_disk, is_full, job_folder
from systolic.program._options import CompileOptions
from systolic.target import Target, compiler_environment

_POLL = 0.05
_MEMORY_POLL = 0.2
_GIB = 1 << 30


def run_compiler(
    blob: bytes,
    *,
    name: str,
    target: Target,
    axes: Mapping[str, int],
    donated: tuple[int, ...],
    options: CompileOptions,
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Compile an exported module in a process of its own.

    Returns:
        ``(meta, files)``: ``meta`` has ``memory`` and ``cost``, or ``error`` with the words of a compiler that refused
        the program; ``files`` has ``hlo.txt.gz`` (the scheduled HLO, where there is one) and ``executable.bin`` (depths fast and full).

    Raises:
        CompileTimeoutError: the time limit passed.
        CompilerMemoryError: the compiler used more of this machine's memory than allowed.
        CompilerCrash: the compiler's process died, was killed, or failed before the compiler could judge; or the disk for
            temporary files is full.
        TargetError: libtpu is not installed.
    """
    with job_folder(name) as folder:
        dump = folder / "dump"
        dump.mkdir()
        environment = {**os.environ, **compiler_environment(target, dump_dir=dump)}
        # The dtypes of the program are settled: those of 64 bits are not cut short.
        environment |= {"JAX_ENABLE_X64": "1", "JAX_ENABLE_COMPILATION_CACHE": "0"}
        # The child must find the packages that this process found, whatever its working folder.
        environment["PYTHONPATH"] = os.pathsep.join(path for path in map(os.path.abspath, sys.path) if path)
        job = {"parent": os.getpid(), "target": target.name, "axes": dict(axes), "name": _word(name)}
        job |= {"donated": list(donated), "depth": options.depth}
        (folder / "program.bin").write_bytes(blob)
        (folder / "job.json").write_text(json.dumps(job))
        with open(folder / "log", "wb") as log:
            child = subprocess.Popen(
                [sys.executable, "-P", "-m", "systolic.program._child", str(folder)],
                env=environment,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            schedule = _watch(child, folder, name, target, options)
        finally:
            _kill(child)
        return _collect(child, folder, schedule, name, target, options.depth)


def _watch(
    child: subprocess.Popen, folder: pathlib.Path, name: str, target: Target, options: CompileOptions
) -> pathlib.Path | None:
    """Wait for the end, or for the schedule where nothing more is wanted; returns the schedule's file, if complete."""
    started = time.monotonic()
    allowed = options.memory_limit or int(0.8 * _free_memory())
    measured = 0.0
    schedule: pathlib.Path | None = None
    while child.poll() is None:
        now = time.monotonic() - started
        schedule = schedule or _complete_dump(folder / "dump", child.pid)
        enough = options.depth == "schedule" or _is_refusal(folder)
        if schedule is not None and enough:
            return schedule
        if now > options.time_limit:
            raise CompileTimeoutError(
                f"program {name!r}: the compiler for {target.name} was stopped after its time limit of "
                f"{options.time_limit:g} s; raise CompileOptions(time_limit=…), or use depth='schedule' or 'fast'"
            )
        if now - measured >= _MEMORY_POLL:
            measured = now
            used = _resident(child.pid)
            if used > allowed:
                raise CompilerMemoryError(
                    f"program {name!r}: the compiler for {target.name} needed more than {allowed / _GIB:.2f} GiB of "
                    "this machine's memory and was stopped; compile on a larger machine, raise "
                    "CompileOptions(memory_limit=…), or make the program smaller (scan over equal layers)"
                )
            if options.on_progress is not None:
                options.on_progress(now, _stage(folder, schedule))
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_POLL)
    return schedule or _complete_dump(folder / "dump", child.pid)


def _is_refusal(folder: pathlib.Path) -> bool:
    """Whether the child has said why it will not give a result, and now only looks for a schedule."""
    return (folder / "result.json").exists() and not (folder / "hlo.txt.gz").exists()


def _collect(
    child: subprocess.Popen, folder: pathlib.Path, schedule: pathlib.Path | None, name: str, target: Target, depth: str
) -> tuple[dict[str, Any], dict[str, bytes]]:
    files = {
        path.name: path.read_bytes() for path in (folder / "hlo.txt.gz", folder / "executable.bin") if path.exists()
    }
    if schedule is not None and "hlo.txt.gz" not in files:
        files["hlo.txt.gz"] = gzip.compress(schedule.read_bytes(), compresslevel=3)
    result = folder / "result.json"
    if result.exists():
        meta = json.loads(result.read_text())
        if "failed" in meta:
            if is_full(folder):
                raise CompilerCrash(full_disk(name, folder.parent))
            raise CompilerCrash(
                f"program {name!r}: the process that compiles for {target.name} failed, the program was not judged: "
                f"{meta['failed']}"
            )
        return meta, files
    if schedule is not None and depth == "schedule":  # stopped by us, with what was asked for in hand
        return {}, files
    if is_full(folder):  # and so without a last word, too
        raise CompilerCrash(full_disk(name, folder.parent))
    raise CompilerCrash(_crash(child.returncode, folder / "log", name, target))


def _crash(status: int, log: pathlib.Path, name: str, target: Target) -> str:
    cause = _last_words(log.read_text(errors="replace"))
    if status == -signal.SIGKILL:
        how = "was killed from outside (signal 9; often the system ran out of memory)"
    elif status < 0:
        how = f"crashed ({signal.Signals(-status).name})"
    else:
        how = f"ended with status {status}"
    return f"program {name!r}: the compiler for {target.name} {how}" + (f": {cause}" if cause else "")


def _last_words(log: str) -> str:
    """The line of a log that tells why a process died: a failed check, else an exception, else the last line."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    for line in lines:
        if re.match(r"F\d{4} ", line) or "Check fail" in line:
            return re.sub(r"^F\d{4} \S+\s+\d+ ", "", line)
    frames = re.compile(r"@\s+0x|\*\*\*|File \"|#\d+ |PC: |Fatal Python|Thread 0x|Current thread|Extension modules")
    return next((line for line in reversed(lines) if not frames.match(line)), "")


def _complete_dump(folder: pathlib.Path, pid: int) -> pathlib.Path | None:
    """The scheduled HLO that the compiler wrote, once it is closed and whole; the largest where there are several."""
    found = [path for path in folder.iterdir() if path.name.endswith("TLP-hlo.txt")]
    if not found or any(str(path) in _open_files(pid) for path in found):
        return None
    largest = max(found, key=lambda path: path.stat().st_size)
    with open(largest, "rb") as file:
        file.seek(max(0, largest.stat().st_size - 64))
        return largest if file.read().rstrip().endswith(b"}") else None


def _open_files(pid: int) -> set[str]:
    out = set()
    with contextlib.suppress(OSError):  # the process ended, and so has nothing open
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                out.add(os.readlink(entry.path))
    return out


def _stage(folder: pathlib.Path, schedule: pathlib.Path | None) -> str:
    try:
        stage = (folder / "stage").read_text()
    except FileNotFoundError:
        return "starting the compiler"
    return "generating code" if stage == "compiling" and schedule is not None else stage


def _kill(child: subprocess.Popen) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _resident(pid: int) -> int:
    """Bytes of memory that a process occupies; 0 when it has ended."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def _free_memory() -> int:
    """Bytes that a new process can have on this machine without swapping."""
    with open("/proc/meminfo") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _word(name: str) -> str:
    return re.sub(r"\W", "_", name) or "program"
