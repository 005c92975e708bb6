"""Devices that are attached: the best kind, enough CPU devices, and what to say when there are too few."""

from __future__ import annotations

import math
import os
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

    try:
        platform = jax.default_backend()
    except RuntimeError as error:
        raise TargetError(f"target='auto': JAX finds no devices here ({error}); check JAX_PLATFORMS") from error
    if platform not in _ADVICE:
        raise TargetError(f"target='auto': JAX runs on {platform!r} here, not on tpu, gpu or cpu; check JAX_PLATFORMS")
    return Name(platform)


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
    except RuntimeError as error:
        raise TargetError(
            f"target={name.canonical!r}: JAX finds no {name.platform.upper()} here; {_ADVICE[name.platform]}"
        ) from error
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


def _too_few(platform: str, wanted: int) -> str:
    if platform == "cpu":
        return (
            f"JAX fixes the number when it first lists its devices: make Target('cpu:{wanted}') before that, or start "
            f"Python with XLA_FLAGS=--xla_force_host_platform_device_count={wanted}"
        )
    return f"use '{platform}' for all that are attached"
