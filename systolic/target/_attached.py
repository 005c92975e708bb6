"""Devices that are attached: the best kind, enough CPU devices, and what to say when there are too few."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from systolic._errors import TargetError
from systolic.target._names import Name

if TYPE_CHECKING:
    import jax

_ADVICE = {
    "cpu": "check JAX_PLATFORMS",
    "gpu": "install jax[cuda13] or jax[cuda12] on a machine with an NVIDIA GPU and check JAX_PLATFORMS, or use 'auto'",
    "tpu": "run on a TPU machine with 'systolic[tpu]', or name a described TPU such as 'v5e-8' to compile without one",
}


def best_attached() -> Name:
    """All devices of the best kind that JAX finds: tpu, then gpu, then cpu. Makes JAX list its devices."""
    import jax

    with platforms_explained("target='auto'"):
        platform = jax.default_backend()
    if platform not in _ADVICE:
        raise TargetError(f"target='auto': JAX runs on {platform!r} here, not on tpu, gpu or cpu; check JAX_PLATFORMS")
    return Name(platform)


@contextlib.contextmanager
def platforms_explained(what: str) -> Iterator[None]:
    """Say clearly when the body failed because JAX cannot have the platforms that JAX_PLATFORMS demands.

    Args:
        what: was wanted, to begin the message with.

    Raises:
        TargetError: in the place of the error that JAX raises at whatever call came first.
    """
    try:
        yield
    except (RuntimeError, AssertionError) as error:  # JAX asserts where jax[cuda] is there and no GPU is
        if (problem := _platform_problem()) is None:
            raise
        raise TargetError(f"{what}: {problem}") from error


def _platform_problem() -> str | None:
    """Why JAX can list no devices at all, and what to set; ``None`` where it can."""
    import jax

    try:
        jax.devices()
        return None
    except (RuntimeError, AssertionError) as error:
        asked = jax.config.jax_platforms
        if not asked:
            return f"JAX finds no devices here ({error}); check the installation with 'systolic doctor'"
        said = str(error).partition(" (set JAX_PLATFORMS")[0]
        return (
            f"JAX_PLATFORMS={asked} demands what this machine or its JAX does not have{f' ({said})' if said else ''}; unset "
            "JAX_PLATFORMS, or set JAX_PLATFORMS=cpu (enough to compile for described targets such as 'v5e-8', too)"
        )


def cpu_will_have(count: int | None) -> bool:
    """Have JAX show ``count`` CPU devices over all processes; False where only listing the devices tells if it does."""
    if count is None:
        return True
    import jax

    if "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        return False  # the user's own number, which JAX takes instead of ours
    processes, chosen = _num_processes(), jax.config.jax_num_cpu_devices
    share = math.ceil(count / processes)
    if chosen == share or (chosen > share and processes == 1):  # one process may use a part; of several, none may idle
        return True
    try:
        jax.config.update("jax_num_cpu_devices", share)
    except RuntimeError:  # JAX has listed its devices: their number is fixed
        return False
    return True


def _num_processes() -> int:
    """Processes of this run, without making JAX list its devices as ``jax.process_count()`` does."""
    import jax

    if not jax.distributed.is_initialized():
        return 1
    from systolic._private_jax import num_processes

    processes = num_processes()
    return jax.process_count() if processes is None else processes


def attached_devices(name: Name) -> list[jax.Device]:
    """The devices that an attached target's name asks for, of all processes of the run. Makes JAX list its devices.

    Raises:
        TargetError: there are none of the kind, or too few, or a part of several processes' devices was asked for.
    """
    import jax

    try:
        devices = jax.devices(name.platform)
    except (RuntimeError, AssertionError) as error:
        problem = _platform_problem()
        advice = f"JAX finds no {name.platform.upper()} here; {_ADVICE[name.platform]}{_only_these()}"
        raise TargetError(f"target={name.canonical!r}: {problem or advice}") from error
    wanted = len(devices) if name.count is None else name.count
    if wanted > len(devices):
        raise TargetError(
            f"target={name.canonical!r}: {wanted} devices were wanted and {len(devices)} are there; "
            f"{_too_few(name.platform, wanted)}"
        )
    if jax.process_count() > 1 and wanted != len(devices):
        raise TargetError(
            f"target={name.canonical!r}: {wanted} devices were wanted and the {jax.process_count()} processes of this "
            f"run have {len(devices)}; a part of them would leave processes without work: use '{name.platform}'"
        )
    return list(devices[:wanted])


def _only_these() -> str:
    import jax

    return f" (JAX_PLATFORMS={jax.config.jax_platforms} is set)" if jax.config.jax_platforms else ""


def _too_few(platform: str, wanted: int) -> str:
    if platform == "cpu":
        return (
            f"JAX fixes the number when it first lists its devices: make Target('cpu:{wanted}') before that, or start "
            f"Python with XLA_FLAGS=--xla_force_host_platform_device_count={wanted}"
        )
    return f"use '{platform}' for all that are attached"
