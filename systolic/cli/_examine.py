"""What the doctor looks at: each function yields findings, and none loads a package to learn its version."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator

from systolic.cli._finding import Finding
from systolic.target import Target, libtpu_version, quiet_environment, tpu_attached

_PACKAGES = ("systolic", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "safetensors", "flatbuffers")
_OPTIONAL = {
    "libtpu": "pip install 'systolic[tpu]': checks for TPUs need it",
    "equinox": "",
    "grain": "",
}
_WATCHED = ("jax", "jaxlib", "libtpu", "numpy", "ml-dtypes", "protobuf", "flax", "optax", "orbax-checkpoint")
"""Packages whose pins by others are what breaks an installation in practice."""
_VARIABLES = (
    "JAX_PLATFORMS",
    "JAX_ENABLE_X64",
    "XLA_FLAGS",
    "LIBTPU_INIT_ARGS",
    "JAX_COMPILATION_CACHE_DIR",
    "LD_PRELOAD",
)
_LITTLE_DISK = 2 << 30  # bytes
_DEVICES_TIME = 120.0  # s; a TPU that another process holds can make JAX wait without end
_LIST_DEVICES = (
    "import systolic, jax, json; d = jax.devices(); "
    "print('\\n' + json.dumps([d[0].platform, d[0].device_kind, len(d), jax.process_count()]))"
)


def machine() -> Iterator[Finding]:
    """Python, operating system, processors, memory."""
    yield Finding("Python", f"{platform.python_version()} ({sys.executable})")
    yield Finding("system", f"{platform.system()} {platform.release()} on {platform.machine()}")
    memory = _memory()
    yield Finding(
        "processors", f"{len(_processors())} usable" + (f", {memory / 2**30:.0f} GiB memory" if memory else "")
    )
    ours = quiet_environment()
    for name in _VARIABLES:
        value = os.environ.get(name)
        if value and value != ours.get(name):
            yield Finding(name, f"set to {value!r}", "note")


def packages() -> Iterator[Finding]:
    """Versions, and whether jax, jaxlib and libtpu belong together."""
    versions = {name: _version(name) for name in (*_PACKAGES, *_OPTIONAL)}
    for name, version in versions.items():
        if version is not None:
            yield Finding(name, version)
        elif name in _OPTIONAL:
            yield Finding(name, "not installed (optional)", "note" if _OPTIONAL[name] else "ok", _OPTIONAL[name])
        else:
            yield Finding(name, "not installed", "problem", f"pip install {name}")
    pairs = {"jaxlib": _wanted_by_jax("jaxlib", None), "libtpu": _wanted_by_jax("libtpu", "tpu")}
    for name, wanted in pairs.items():
        version = versions[name]
        if version is None or not wanted:
            continue
        if _satisfies(version, wanted):
            yield Finding(f"jax and {name}", f"a matched pair: jax {versions['jax']} wants {name}{wanted}")
        else:
            yield Finding(
                f"jax and {name}",
                f"jax {versions['jax']} wants {name}{wanted}, installed is {version}",
                "problem",
                "pip install --force-reinstall 'jax[tpu]' picks the pair that belongs together",
            )
    yield from _front_end()


def _front_end() -> Iterator[Finding]:
    """The set of packages that scripts of TensorFlow 1 run on: it is a front end to their innards, tested with these alone."""
    from packaging.requirements import Requirement

    name, advice = "TensorFlow scripts", "pip install 'systolic[tensorflow]'"
    if _version("tensorflow") is None:
        yield Finding(name, "not installed (optional)", "ok", advice)
        return
    texts = importlib.metadata.requires("systolic") or ()
    wanted = [r for r in map(Requirement, texts) if r.marker is not None and r.marker.evaluate({"extra": "tensorflow"})]
    wanted = [r for r in wanted if not (r.marker and r.marker.evaluate({"extra": ""}))]
    wrong = [
        f"{r.name}{r.specifier} is wanted, installed is {_version(r.name) or 'none'}"
        for r in wanted
        if not _satisfies(_version(r.name) or "0", str(r.specifier))
    ]
    if wrong:
        yield Finding(name, "not the tested set: " + "; ".join(wrong), "problem", advice)
    else:
        yield Finding(name, "the tested set: " + ", ".join(f"{r.name} {_version(r.name)}" for r in wanted))


def conflicts() -> Iterator[Finding]:
    """Requirements that installed packages put on those we stand on and that are not met, and known bad company."""
    from packaging.requirements import Requirement

    seen = False
    for distribution in importlib.metadata.distributions():
        owner = distribution.metadata["Name"]
        for text in distribution.requires or ():
            requirement = Requirement(text)
            if requirement.name.lower().replace("_", "-") not in _WATCHED:
                continue
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
                continue
            version = _version(requirement.name)
            if version is not None and not requirement.specifier.contains(version, prereleases=True):
                seen = True
                yield Finding(
                    str(owner),
                    f"{owner} {distribution.version} wants {requirement.name}{requirement.specifier}, installed is {version}",
                    "problem",
                    f"use {owner} in a virtual environment of its own, or upgrade it",
                )
    for finding in _company():
        seen = True
        yield finding
    if not seen:
        yield Finding("requirements", f"those on {', '.join(_WATCHED[:5])} and so on are met")


def devices() -> Iterator[Finding]:
    """What JAX finds, asked in a child process with a time limit."""
    plugins = [point.name for point in importlib.metadata.entry_points(group="jax_plugins")]
    plugins += [part.split(":")[0] for part in os.environ.get("PJRT_NAMES_AND_LIBRARY_PATHS", "").split(",") if part]
    yield Finding("PJRT plug-ins", ", ".join(sorted(set(plugins))) or "none (CPU, and TPU through libtpu)")
    yield Finding("TPU on the PCI bus", "yes" if tpu_attached() else "no")
    try:
        child = subprocess.run(
            [sys.executable, "-c", _LIST_DEVICES], capture_output=True, text=True, timeout=_DEVICES_TIME
        )
    except subprocess.TimeoutExpired:
        yield Finding(
            "jax.devices()",
            f"no answer in {_DEVICES_TIME:.0f} s",
            "problem",
            "another process may hold the accelerator; end it, or set JAX_PLATFORMS=cpu",
        )
        return
    lines = child.stdout.strip().splitlines()
    if child.returncode or not lines:
        error = (child.stderr.strip().splitlines() or ["no message"])[-1]
        yield Finding("jax.devices()", error, "problem", "run python -c 'import jax; jax.devices()' to see all of it")
        return
    kind, name, count, processes = json.loads(lines[-1])
    where = f", {processes} processes" if processes > 1 else ""
    yield Finding("jax.devices()", f"{count} × {kind} ({name}){where}")
    if tpu_attached() and kind != "tpu":
        yield Finding(
            "TPU", "attached, but JAX does not use it", "problem", "pip install 'systolic[tpu]'; unset JAX_PLATFORMS"
        )


def cache() -> Iterator[Finding]:
    """The folder of compiled programs: size, whether it can be written, room on its disk."""
    from systolic.program import cache_dir

    folder = cache_dir()
    size = sum(_size(os.path.join(root, file)) for root, _, files in os.walk(folder) for file in files)
    yield Finding("folder", f"{folder} ({size / 2**20:,.0f} MiB)")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0")
    except OSError as error:
        yield Finding(
            "writable",
            f"no: {error.strerror or error}",
            "problem",
            "set SYSTOLIC_CACHE_DIR to a folder that you own; without it every start compiles anew",
        )
        return
    yield Finding("writable", "yes")
    free = shutil.disk_usage(folder).free
    little = free < _LITTLE_DISK
    yield Finding("free disk", f"{free / 2**30:.1f} GiB", "note" if little else "ok", "make room" if little else "")


def compiler(compile_one: bool) -> Iterator[Finding]:
    """Whether the TPU compiler works here, by compiling one small program for a TPU that is not here."""
    version = libtpu_version()
    if version is None:
        on = platform.system() == "Linux" and platform.machine() == "x86_64"
        advice = "pip install 'systolic[tpu]'" if on else "libtpu exists for Linux on x86-64; check on such a machine"
        yield Finding("libtpu", "not installed: checks for TPUs are off", "note", advice)
        return
    if not compile_one:
        yield Finding("libtpu", f"{version}, not tried")
        return
    import jax

    from systolic._errors import SystolicError
    from systolic.program import CompileOptions, Program

    example = jax.ShapeDtypeStruct((256, 256), "float32")
    program = Program(lambda x: x @ x, example, name="matmul")
    try:
        found = program.compile(Target("v5e-1"), CompileOptions(cache=False, time_limit=120))
    except SystolicError as error:
        yield Finding("libtpu", f"{version}: {error}", "problem", "pip install --force-reinstall 'jax[tpu]'")
        return
    yield Finding("libtpu", f"{version} compiled a matrix product for v5e-1 in {found.seconds:.1f} s")


def _company() -> Iterator[Finding]:
    """Packages that do not go together, whatever their pins say."""
    cuda = [name for name in ("jax-cuda12-plugin", "jax-cuda13-plugin") if _version(name)]
    if len(cuda) > 1:
        yield Finding(
            "CUDA plug-ins", " and ".join(cuda) + " are both installed", "problem", f"pip uninstall {cuda[0]}"
        )
    for name in cuda:
        if _version(name) != _version("jaxlib"):
            text = f"{name} {_version(name)} with jaxlib {_version('jaxlib')}"
            yield Finding(name, text, "problem", "pip install --upgrade 'jax[cuda12]' installs versions that match")
    for name in ("tensorflow", "tensorflow-cpu"):
        if version := _version(name):
            text = f"{name} {version} is installed beside jax {_version('jax')}: they must agree on numpy, ml-dtypes and protobuf"
            advice = (
                "hide accelerators from it: tf.config.set_visible_devices([], 'GPU')" if name == "tensorflow" else ""
            )
            yield Finding(name, text, "note", advice)
    if version := _version("tensorflow-tpu"):
        text = f"tensorflow-tpu {version} brings a libtpu of its own"
        yield Finding("tensorflow-tpu", text, "problem", "use it in a virtual environment of its own")
    if version := _version("libtpu-nightly"):
        text = f"libtpu-nightly {version} is installed beside libtpu"
        yield Finding("libtpu-nightly", text, "problem", "pip uninstall libtpu-nightly")


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _wanted_by_jax(name: str, extra: str | None) -> str:
    """The version specifier that the installed jax puts on ``name``, or ''."""
    from packaging.requirements import Requirement

    if _version("jax") is None:
        return ""
    for text in importlib.metadata.requires("jax") or ():
        requirement = Requirement(text)
        if requirement.name == name and (
            requirement.marker is None or requirement.marker.evaluate({"extra": extra or ""})
        ):
            return str(requirement.specifier)
    return ""


def _satisfies(version: str, specifier: str) -> bool:
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(specifier).contains(version, prereleases=True)


def _processors() -> list[int]:
    affinity = getattr(os, "sched_getaffinity", None)
    return sorted(affinity(0)) if affinity is not None else list(range(os.cpu_count() or 1))


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):  # not on this system
        return None


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:  # removed while we looked
        return 0
