"""The one place that knows libtpu: how to keep it quiet, how to find its chips, and how to make it compile without one.

What libtpu does when nobody stops it, and what is done here (measured with libtpu 0.0.42.1):

- On a machine without a TPU it asks the cloud's metadata server who it is, and prints the failures, even for a plain
  ``jax.devices()``: :func:`quiet_environment` answers the questions beforehand and keeps JAX off the ``tpu`` platform.
- It writes a log folder: switched off in compile children.
- A second process that loads it dies on a lock file. ``ALLOW_MULTIPLE_LIBTPU_LOAD`` lifts the lock, which is right for
  a compiler and wrong for a driver: it is never set where a TPU is attached.
- It assumes a host of 2x2 chips; smaller and larger hosts need ``chips_per_host_bounds``.
- A v4 chip shows its two TensorCores apart unless told ``megacore``, the way Cloud TPU runs them.
- It can abort the process: :func:`compile_devices` belongs in a child process.
"""

from __future__ import annotations

import glob
import importlib.util
import os
import pathlib
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from systolic._errors import TargetError
from systolic.target._mesh import arrange, resolve_axes
from systolic.target._topology import GENERATIONS, text

if TYPE_CHECKING:
    import jax

    from systolic.target._target import Target

_GOOGLE_PCI_VENDOR = "0x1ae0"
# The devices of that vendor which are TPUs: others, such as the cloud's network card, share the vendor number.
# Source: jax/_src/hardware_utils.py of jax 0.10.2, and 0x0027 for v2 and v3.
_TPU_PCI_DEVICES = frozenset({"0x0027", "0x0056", "0x005e", "0x0062", "0x0063", "0x006f", "0x0076"})

# Answers to what libtpu would ask the metadata server. The accelerator type only ends the question: the topology to
# compile for is passed by name, and is not limited by it.
_ANSWERS = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
}


def libtpu_version() -> str | None:
    """Version of the installed libtpu, read from its metadata without loading it; None when it is not installed."""
    from importlib import metadata

    try:
        return metadata.version("libtpu")
    except metadata.PackageNotFoundError:
        return None


def tpu_attached() -> bool:
    """Whether this machine has a TPU, looked up on the PCI bus as JAX does, without loading libtpu."""
    for vendor in glob.glob("/sys/bus/pci/devices/*/vendor"):
        path = pathlib.Path(vendor)
        try:
            if path.read_text().strip() != _GOOGLE_PCI_VENDOR:
                continue
            if path.with_name("device").read_text().strip() in _TPU_PCI_DEVICES:
                return True
        except OSError:  # a device that was unplugged between the listing and the reading is not attached
            continue
    return False


def quiet_environment() -> dict[str, str]:
    """Environment that keeps libtpu silent in a process which does not drive a TPU.

    Empty where libtpu is not installed or a TPU is attached: there, libtpu and JAX must look at the machine themselves.
    JAX_PLATFORMS names the platforms that this machine can have, so that JAX does not try the TPU and load libtpu.
    """
    if not _libtpu_installed() or tpu_attached():
        return {}
    environment = dict(_ANSWERS)
    platforms = _platforms_without_tpu()
    if platforms is not None:
        environment["JAX_PLATFORMS"] = platforms
    return environment


def prepare_process() -> None:
    """Set :func:`quiet_environment` for this process, where the user has not set a variable to something else.

    Cheap, and safe to call again. Works before or after ``import jax``, but before JAX first lists its devices. A
    process that asked JAX for a TPU by name (JAX_PLATFORMS=tpu) is left alone.
    """
    environment = quiet_environment()
    platforms = environment.pop("JAX_PLATFORMS", None)
    for variable, value in environment.items():
        os.environ.setdefault(variable, value)
    if platforms is None or os.environ.get("JAX_PLATFORMS") or os.environ.get("JAX_FORCE_TPU_INIT"):
        return
    jax = sys.modules.get("jax")
    if jax is None:
        os.environ["JAX_PLATFORMS"] = platforms
    elif not jax.config.jax_platforms:  # imported already: it has read its environment, so tell it directly
        jax.config.update("jax_platforms", platforms)


def compiler_environment(target: Target, dump_dir: str | os.PathLike[str] | None = None) -> dict[str, str]:
    """Environment variables for a child process that compiles for a described target; merge it over ``os.environ``.

    Args:
        target: the described target.
        dump_dir: an existing folder into which libtpu writes ``*TLP-hlo.txt``, the scheduled HLO before code
            generation. The file is there long before the compile ends. Its log files go there, too.

    Raises:
        TargetError: libtpu is not installed, the target is not a described one, or ``dump_dir`` has white space in it
            (libtpu splits its arguments there).
    """
    _require_described(target)
    _require_libtpu(target)
    environment = {**_ANSWERS, "JAX_PLATFORMS": "cpu", "TPU_LOG_DIR": "disabled"}
    if not tpu_attached():
        environment["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"
    if dump_dir is not None:
        folder = os.fspath(dump_dir)
        if len(folder.split()) != 1:
            raise TargetError(f"dump_dir={folder!r}: libtpu takes no path with white space; use another folder")
        flags = (
            os.environ.get("LIBTPU_INIT_ARGS", ""),
            f"--xla_jf_dump_to={folder}",
            "--xla_jf_dump_hlo_text=true",
            "--xla_jf_dump_llo_pass_label_regex=NONE",
        )
        environment["LIBTPU_INIT_ARGS"] = " ".join(flag for flag in flags if flag)
        environment["TMPDIR"] = folder  # libtpu leaves log files in the folder for temporary files
    return environment


def compiler_options(depth: str) -> tuple[dict[str, Any], ...]:
    """Options of the compiler for a depth, best first: a libtpu that does not know the one takes the next.

    ``"schedule"`` is wanted of a program that does not fit, too; ``"fast"`` is low effort (a twentieth of the time for a
    ResNet-50, and memory within a few per cent), which was a number until libtpu 0.0.42 and is a level in 0.0.50;
    ``"full"`` is what the compiler does by itself. Source of the levels: https://openxla.org/xla/effort_levels.
    """
    if depth == "schedule":
        return ({"xla_tpu_no_crash_on_oom": True},)
    if depth == "fast":
        return ({"exec_time_optimization_effort": -1.0}, {"xla_optimization_level": "EFFORT_O0"})
    return ({},)


def compile_devices(target: Target) -> list[jax.Device]:
    """Devices of a described target, to compile for and not to run on; slice by slice, in libtpu's order.

    Call it in a child process that was started with :func:`compiler_environment`: this loads libtpu, which can abort
    the process.

    Raises:
        TargetError: libtpu is not installed, the target is not a described one, or libtpu refuses its topology.
    """
    _require_described(target)
    _require_libtpu(target)
    from jax.experimental import topologies

    generation = GENERATIONS[target.generation]
    bounds = tuple(int(size) for size in target.topology.split("x"))
    options: dict[str, object] = {"chips_per_host_bounds": generation.host_bounds(bounds)}
    if generation.name == "v4":
        options["chip_config_name"] = "megacore"
    if target.num_slices > 1:
        options["num_slices"] = target.num_slices
    try:
        described = topologies.get_topology_desc(
            platform="tpu", topology_name=f"{generation.name}:{text(bounds)}", **options
        )
    except Exception as error:
        raise TargetError(
            f"target={target.name!r}: libtpu {libtpu_version()} refuses its topology: {error}. Choose another size, or "
            f"install a libtpu that knows it."
        ) from error
    devices = list(described.devices)
    if len(devices) != target.num_devices:
        raise TargetError(
            f"target={target.name!r}: libtpu {libtpu_version()} describes {len(devices)} devices where "
            f"{target.num_devices} were expected; install the libtpu that jax[tpu] picks."
        )
    return devices


def compile_mesh(target: Target, axes: Mapping[str, int]) -> jax.sharding.Mesh:
    """The mesh that :meth:`Target.mesh` describes, over :func:`compile_devices`; for the same child process.

    Raises:
        TargetError: as :func:`compile_devices`, or the axes do not fit.
    """
    import jax

    sizes = resolve_axes(axes, target.num_devices, target.name)
    placed = arrange(compile_devices(target), tuple(sizes.values()))
    return jax.sharding.Mesh(placed, tuple(sizes), axis_types=(jax.sharding.AxisType.Auto,) * len(sizes))


def _libtpu_installed() -> bool:
    """Whether JAX would find libtpu, as a package or by the path that its TPU_LIBRARY_PATH gives."""
    return os.path.isfile(os.environ.get("TPU_LIBRARY_PATH", "")) or importlib.util.find_spec("libtpu") is not None


def _require_described(target: Target) -> None:
    if target.attached:
        raise TargetError(
            f"target={target.name!r}: attached devices compile in their own process; a described target such as "
            f"'v5e-8' was wanted"
        )


def _require_libtpu(target: Target) -> None:
    if not _libtpu_installed():
        raise TargetError(
            f"target={target.name!r}: a described TPU is compiled by libtpu, which is not installed. Install "
            f"'systolic[tpu]' (Linux on x86-64)."
        )


def _platforms_without_tpu() -> str | None:
    """What JAX_PLATFORMS should be on a machine without a TPU; None leaves the choice to JAX."""
    if os.path.exists("/dev/kfd"):
        return None  # AMD: the platform's name depends on the plug-in, and JAX finds it; its try at a TPU stays quiet
    nvidia = any(os.path.exists(device) for device in ("/dev/nvidia0", "/dev/nvidiactl", "/dev/dxg"))
    plugins = ("jax_cuda13_plugin", "jax_cuda12_plugin")
    if nvidia and any(importlib.util.find_spec(plugin) is not None for plugin in plugins):
        return "cuda,cpu"
    return "cpu"
