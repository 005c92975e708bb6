"""Compile for a target that is only described: export here, compile in a child process, keep the result on disk."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jaxlib

from systolic._errors import CompileError
from systolic.program._described_cache import DescribedCache
from systolic.program._executable import MemoryStats
from systolic.program._export import Exported, export
from systolic.program._jax_cache import cache_dir, caches_wanted
from systolic.program._options import CompileOptions
from systolic.program._out_of_memory import ProgramTooLargeError, parse_buffers, parse_sizes
from systolic.program._runner import run_compiler
from systolic.target import Target, compiler_options, libtpu_version, platforms_explained

_FORMAT = 2  # of the cache entries: raise it when their meaning changes


@dataclasses.dataclass(frozen=True)
class Description:
    """A program as the TPU compiler made it, for devices that are not here: to look into, not to run.

    Attributes:
        program: its name.
        target: what it was compiled for.
        depth: ``"schedule"``, ``"fast"`` or ``"full"``.
        memory: bytes per device; ``None`` at depth schedule, where nothing was allocated yet.
        cost: XLA's own cost analysis (loop bodies counted once); ``None`` at depth schedule.
        cache: ``"hit"`` or ``"miss"``.
        seconds: wall time of this call, in seconds: trace, lowering, and compile or cache.
        argument_names: path of every flattened input in the order of the HLO's parameters: ``state/params/kernel``.
        donated: positions of the inputs whose buffers the results may reuse.
        notes: what a reader should know, such as host callbacks that were compiled as transfers only.
        versions: of jax, jaxlib and libtpu at the time of the call.
    """

    program: str
    target: Target
    depth: str
    memory: MemoryStats | None
    cost: dict[str, float] | None
    cache: str
    seconds: float
    argument_names: tuple[str, ...]
    donated: tuple[int, ...]
    notes: tuple[str, ...]
    versions: dict[str, str | None]
    _hlo: bytes = dataclasses.field(repr=False)
    _module: bytes = dataclasses.field(repr=False)
    _executable: bytes | None = dataclasses.field(repr=False)

    @property
    def hlo_text(self) -> str:
        """The scheduled HLO of one device: layouts, memory spaces, and the order in which the device will run it.

        Source lines in it are those of the compile that made the cache entry: moving code does not compile it again.
        """
        return gzip.decompress(self._hlo).decode()

    def lower_text(self) -> str:
        """The program as StableHLO text, before the compiler."""
        return jax.export.deserialize(bytearray(self._module)).mlir_module()

    def serialize(self) -> bytes:
        """The compiled binary, for a process that has the devices and the same versions.

        Raises:
            CompileError: at depth schedule no code was generated.
        """
        if self._executable is None:
            raise CompileError(
                f"program {self.program!r}: depth {self.depth!r} generates no code; compile with "
                "CompileOptions(depth='full') to serialise it"
            )
        return self._executable

    def to_json(self) -> dict[str, Any]:
        """All but the texts and the binary, in plain types."""
        out = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if not f.name.startswith("_")}
        return out | {
            "target": self.target.name,
            "memory": None if self.memory is None else dataclasses.asdict(self.memory),
            "argument_names": list(self.argument_names),
            "donated": list(self.donated),
            "notes": list(self.notes),
        }


def describe(
    fn: Callable[..., Any],
    args: Sequence[Any],
    *,
    name: str,
    target: Target,
    donate: Sequence[int],
    in_specs: Sequence[Any] | None,
    out_specs: Any,
    mesh_axes: Mapping[str, int],
    options: CompileOptions,
) -> Description:
    """Compile ``fn`` for a described target; the compiler runs in a child process, or not at all when the cache knows.

    Args:
        fn: pure function of pytrees.
        args: one pytree of ``jax.ShapeDtypeStruct`` per argument.
        name: of the program.
        target: a described target.
        donate: positions in ``args`` whose buffers may be reused.
        in_specs: per argument a pytree prefix of ``PartitionSpec``; ``None`` replicates.
        out_specs: a pytree prefix of ``PartitionSpec``; ``None`` leaves the layout of the result to the compiler.
        mesh_axes: axis name to size; one may be -1.
        options: depth, limits, cache.

    Raises:
        ProgramTooLargeError: it does not fit the device's memory (depths fast and full).
        CompileTimeoutError: the compiler ran past its time limit.
        CompileError: the compiler refused.
        CompilerCrash: its process died or failed; the program was not judged, and nothing is cached.
        CompilerMemoryError: it needed too much of this machine's memory.
        TargetError: the axes do not fit the target, or libtpu is not installed and the cache does not know the program.
    """
    started = time.monotonic()
    with platforms_explained(f"program {name!r}"):  # a function may make arrays while it is traced
        exported = export(
            fn, args, name=name, mesh=target.mesh(mesh_axes), donate=donate, in_specs=in_specs, out_specs=out_specs
        )
    cache = DescribedCache(cache_dir() / "described") if options.cache and caches_wanted() else None
    key = _key(exported, target, options)
    found = cache.load(key) if cache is not None else None
    if found is None:
        meta, files = run_compiler(
            exported.blob, name=name, target=target, axes=mesh_axes, donated=exported.donated, options=options
        )
        if cache is not None and ("error" in meta or "hlo.txt.gz" in files):
            cache.store(key, meta, files)
    else:
        meta, files = found
    seconds = time.monotonic() - started
    make = _Maker(name, target, exported, "miss" if found is None else "hit", seconds, files)
    if "error" in meta:
        raise _error(meta["error"], make)
    if "hlo.txt.gz" not in files:
        raise CompileError(
            f"program {name!r}: the compiler for {target.name} ended without a schedule; use another depth than "
            f"{options.depth!r}"
        )
    return make.description(options.depth, meta)


@dataclasses.dataclass(frozen=True)
class _Maker:
    name: str
    target: Target
    exported: Exported
    cache: str
    seconds: float
    files: dict[str, bytes]

    def description(self, depth: str, meta: Mapping[str, Any]) -> Description:
        return Description(
            program=self.name,
            target=self.target,
            depth=depth,
            memory=MemoryStats(**meta["memory"]) if "memory" in meta else None,
            cost=meta.get("cost"),
            cache=self.cache,
            seconds=self.seconds,
            argument_names=self.exported.names,
            donated=self.exported.donated,
            notes=(*self.exported.notes, *meta.get("notes", ())),
            versions=_versions(),
            _hlo=self.files["hlo.txt.gz"],
            _module=self.exported.blob,
            _executable=self.files.get("executable.bin"),
        )


def _key(exported: Exported, target: Target, options: CompileOptions) -> str:
    flags = {name: os.environ.get(name, "") for name in ("LIBTPU_INIT_ARGS", "XLA_FLAGS")}
    effort = compiler_options(options.depth)
    parts = [_FORMAT, exported.fingerprint, target.name, options.depth, effort, _versions(), flags]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _versions() -> dict[str, str | None]:
    return {"jax": jax.__version__, "jaxlib": jaxlib.__version__, "libtpu": libtpu_version()}


def _error(message: str, make: _Maker) -> CompileError:
    if "RESOURCE_EXHAUSTED" not in message:
        words = re.sub(r"^(INTERNAL|INVALID_ARGUMENT|UNIMPLEMENTED|FAILED_PRECONDITION): ", "", message.strip())
        words = "\n".join(words.splitlines()[:12])
        return CompileError(f"program {make.name!r} does not compile for {make.target.name}: {words}")
    needed, available = parse_sizes(message)
    if available is None and make.target.hardware is not None:
        available = make.target.hardware.hbm_bytes
    return ProgramTooLargeError(
        _too_large(message, make, needed, available),
        needed_bytes=needed,
        available_bytes=available,
        buffers=parse_buffers(message),
        schedule=make.description("schedule", {}) if "hlo.txt.gz" in make.files else None,
    )


def _too_large(message: str, make: _Maker, needed: int | None, available: int | None) -> str:
    head = f"program {make.name!r} does not fit {make.target.name}: "
    if needed is None or available is None:
        return head + message.strip().splitlines()[0]
    gib = 1 << 30
    return (
        head + f"it needs {needed / gib:.2f} GiB per device, {(needed - available) / gib:.2f} GiB more than the "
        f"{available / gib:.2f} GiB that a device has; use a smaller batch, more devices, rematerialisation "
        "(jax.checkpoint) or narrower types. `systolic check` lists the largest buffers and the largest batch that fits"
    )
