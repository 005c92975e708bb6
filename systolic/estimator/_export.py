"""Export: weights, one StableHLO program per mode and batch size, and a JSON description; no pickle, no user code.

The folder holds ``systolic.json`` (what there is, shapes, versions, checksums), ``weights.safetensors`` (flat, by path)
and ``<mode>_b<batch>.stablehlo`` (``jax.export`` artefacts, which newer JAX versions read for six months: keep the
checkpoint as the archive). Each program takes ``(weights, batch)``, so all share one copy of the weights.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import importlib.metadata
import json
import os
import pathlib
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from systolic._arguments import one_of, whole
from systolic._errors import CompileError, InputError
from systolic.data import ElementSpec
from systolic.estimator._engine import Engine
from systolic.estimator._folder import unwritable
from systolic.estimator._mode import Mode
from systolic.estimator._process import host, is_gone
from systolic.program import leaf_names

FORMAT = 1
DESCRIPTION = "systolic.json"
WEIGHTS = "weights.safetensors"
PLATFORMS = ("cpu", "tpu", "cuda", "rocm")


def export(
    engine: Engine, directory: pathlib.Path, batch_sizes: Sequence[int] | None, platforms: Sequence[str]
) -> pathlib.Path:
    """Write the export folder, whole or not at all; an earlier export of the same name is replaced.

    Raises:
        InputError: an unknown platform, a bad batch size, or a folder that holds something else.
        CompileError: a program cannot be exported (host callbacks, results that are not arrays).
    """
    platforms = _listed("export(platforms)", platforms)
    for platform in platforms:
        one_of("export(platforms)", platform, PLATFORMS)
    if batch_sizes is None:
        batch_sizes = [engine.batch_sizes[Mode.PREDICT]]
    sizes = sorted({whole("export(batch_sizes)", size) for size in _listed("export(batch_sizes)", batch_sizes)})
    with _writing(directory):
        if directory.exists() and not directory.is_dir():
            raise InputError(
                f"export(directory): {directory} is a file; name a folder that is new, or an earlier export"
            )
        if directory.exists() and any(directory.iterdir()) and not (directory / DESCRIPTION).exists():
            raise InputError(
                f"export(directory): {directory} holds something that is not an export; choose an empty folder"
            )
    variables = jax.device_get(engine.variables())
    spec = engine.spec
    assert spec is not None
    jobs = [(Mode.PREDICT, size) for size in sizes]
    if spec.labels is not None:
        jobs.append((Mode.EVAL, engine.batch_sizes[Mode.EVAL]))
    with _writing(directory):
        directory.parent.mkdir(parents=True, exist_ok=True)
        _sweep(directory)
        prefix = f".{directory.name}.{host()}.{os.getpid()}."
        partial = pathlib.Path(tempfile.mkdtemp(prefix=prefix, dir=directory.parent))
        try:
            description = _write(engine, partial, variables, spec, jobs, platforms)
            (partial / DESCRIPTION).write_text(json.dumps(description, indent=2) + "\n")
            os.chmod(partial, 0o755)
            _install(partial, directory)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return directory


def _listed(argument: str, value: Any) -> tuple[Any, ...]:
    """A list or tuple with something in it; a string is not taken for a list of letters."""
    if isinstance(value, str) or not isinstance(value, Iterable) or not (items := tuple(value)):
        raise InputError(f"{argument}: saw {value!r}, wanted a list with at least one entry")
    return items


@contextlib.contextmanager
def _writing(directory: pathlib.Path) -> Iterator[None]:
    """What the file system refuses, as an error of the argument."""
    from safetensors import SafetensorError

    try:
        yield
    except OSError as error:
        raise unwritable(directory, error, "export(directory)") from error
    except SafetensorError as error:  # it tells the system's error in words only: "... (os error 28)"
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        cause = OSError(int(number[1]), os.strerror(int(number[1])))
        raise unwritable(directory, cause, "export(directory)") from error


def _sweep(directory: pathlib.Path) -> None:
    """Remove what killed writers of the same export left; what was theirs to put back is put back."""
    prefix = f".{directory.name}."
    for left in directory.parent.iterdir():
        writer = re.fullmatch(r"(.+)\.(\d+)\.[a-z0-9_]{8}(\.old)?", left.name.removeprefix(prefix))
        if not left.name.startswith(prefix) or writer is None or not is_gone(int(writer[2]), writer[1]):
            continue
        if writer[3] and not directory.exists():  # killed between taking the old one away and putting in the new
            with contextlib.suppress(OSError):  # another process was faster
                os.rename(left, directory)
        shutil.rmtree(left, ignore_errors=True)


def _install(partial: pathlib.Path, directory: pathlib.Path) -> None:
    """Put a complete folder in the place of another, which is then left in ``partial`` or gone."""
    if not directory.exists():
        os.replace(partial, directory)
    elif not _exchange(partial, directory):
        aside = partial.with_name(partial.name + ".old")
        os.rename(directory, aside)
        try:
            os.replace(partial, directory)
        except BaseException:
            os.rename(aside, directory)
            raise
        shutil.rmtree(aside)


def _exchange(one: pathlib.Path, other: pathlib.Path) -> bool:
    """Swap two folders in one step, so that a reader finds one or the other; False where the system cannot."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None)  # Linux; not on every file system
    at_cwd, exchange = -100, 2
    return rename is not None and rename(at_cwd, os.fsencode(one), at_cwd, os.fsencode(other), exchange) == 0


def _write(
    engine: Engine,
    folder: pathlib.Path,
    variables: Any,
    spec: ElementSpec,
    jobs: Sequence[tuple[Mode, int]],
    platforms: tuple[str, ...],
) -> dict[str, Any]:
    from safetensors.numpy import save_file

    names = [name.lstrip("/") for name in leaf_names([variables], [""])]
    flat = {name: np.asarray(x, order="C") for name, x in zip(names, jax.tree.leaves(variables), strict=True)}
    structure = jax.tree.structure(variables)
    save_file(flat, folder / WEIGHTS)
    programs = []
    for mode, size in jobs:
        file = f"{mode.value}_b{size}.stablehlo"
        (folder / file).write_bytes(_program(engine, mode, size, spec, names, structure, flat, platforms))
        programs.append({"mode": mode.value, "batch_size": size, "file": file})
    kinds = engine.steps.finalizers.get(Mode.EVAL, {})
    return {
        "format": FORMAT,
        "step": engine.step(),
        "spec": spec.to_json(),
        "programs": programs,
        "platforms": list(platforms),
        "scalar_loss": Mode.EVAL in engine.steps.scalar_loss,
        "metrics": {name: kind.name for name, kind in kinds.items()},
        "parameters": int(sum(x.size for x in jax.tree.leaves(variables["params"]))),
        "versions": {name: importlib.metadata.version(name) for name in ("systolic", "jax", "jaxlib")},
        "sha256": {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())},
    }


def _program(
    engine: Engine,
    mode: Mode,
    size: int,
    spec: ElementSpec,
    names: list[str],
    structure: Any,
    flat: dict[str, Any],
    platforms: tuple[str, ...],
) -> bytes:
    batch = engine.programs.batch(mode, spec, size)
    steps = engine.steps.evaluate if mode is Mode.EVAL else engine.steps.predict

    def run(weights: dict[str, Any], batch: Any) -> Any:
        return steps(jax.tree.unflatten(structure, [weights[name] for name in names]), batch, spec)

    run.__name__ = f"{mode.value}_b{size}"
    weights = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in flat.items()}
    try:
        return bytes(jax.export.export(jax.jit(run), platforms=platforms)(weights, batch).serialize())
    except (ValueError, NotImplementedError, TypeError) as error:
        if isinstance(error, InputError):
            raise
        raise CompileError(
            f"export: the {mode.value} program cannot be exported for {', '.join(platforms)}: {str(error).splitlines()[0]}. "
            "Host callbacks cannot travel with a model, and results must be arrays in dicts, tuples or lists"
        ) from error
