"""Where a program goes: devices that are attached, or TPUs that are only described."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from systolic._errors import TargetError
from systolic.target import _mesh
from systolic.target._hardware import HARDWARE, Hardware, hardware_of
from systolic.target._names import Name, parse
from systolic.target._topology import text

if TYPE_CHECKING:
    import jax

_ADVICE = {
    "cpu": "check JAX_PLATFORMS",
    "gpu": "install jax[cuda13] or jax[cuda12] on a machine with an NVIDIA GPU and check JAX_PLATFORMS, or use 'auto'",
    "tpu": "run on a TPU machine with 'systolic[tpu]', or name a described TPU such as 'v5e-8' to compile without one",
}


class Target:
    """Where a Program goes.

    An *attached* target (``"auto"``, ``"cpu"``, ``"cpu:8"``, ``"gpu"``, ``"tpu"``) compiles and runs. A *described*
    one (``"v5e-8"``, ``"v5p:4x4x4"``, ``"v6e-16x2"`` for two slices) compiles with the real TPU compiler, on a machine
    that has no TPU, and cannot run. Sizes count what the cloud counts: chips for v5e and v6e, TensorCores for v2, v3,
    v4, v5p and tpu7x, so ``v5p-8`` is four chips.

    ``"auto"`` is the best kind that JAX finds: tpu, then gpu, then cpu. It makes JAX list its devices, so a run over
    several processes calls ``jax.distributed.initialize`` first. ``"cpu:8"`` gives this process eight CPU devices, if
    JAX has not listed its devices yet; in a run over several processes, the eight are shared among them.

    Two targets are equal when they mean the same devices: ``Target("v5litepod-8") == Target("v5e:2x4")``.

    Args:
        name: the name, in any letter case; or a Target, for an equal one.

    Raises:
        TargetError: no such target (the message lists what exists and the nearest), or too few devices are attached.

    Example:
        >>> target = Target("v5litepod-8")
        >>> target.name, target.topology, target.num_devices, target.attached
        ('v5e-8', '2x4', 8, False)
        >>> dict(target.mesh({"data": -1, "model": 2}).shape)
        {'data': 4, 'model': 2}
    """

    __slots__ = ("_name",)
    _name: Name

    def __init__(self, name: str | Target) -> None:
        understood = name._name if isinstance(name, Target) else parse(name)
        if understood.platform == "auto":
            understood = _best_attached()
        if understood.count is not None and understood.platform == "cpu":
            _ask_for_cpu_devices(understood.count)
        object.__setattr__(self, "_name", understood)
        if self.attached and understood != Name("cpu"):  # a "cpu" without number always exists: JAX need not look yet
            self.devices()

    def __setattr__(self, attribute: str, value: object) -> None:
        raise AttributeError(f"a Target cannot be changed (setting {attribute!r}): make another one")

    def __reduce__(self) -> tuple:
        return Target, (self.name,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Target) and self._name == other._name

    def __hash__(self) -> int:
        return hash(self._name)

    def __repr__(self) -> str:
        return f"Target({self.name!r})"

    def __str__(self) -> str:
        return self.name

    @property
    def name(self) -> str:
        """The one spelling that equal targets share."""
        return self._name.canonical

    @property
    def platform(self) -> str:
        """``"cpu"``, ``"gpu"`` or ``"tpu"``."""
        return self._name.platform

    @property
    def attached(self) -> bool:
        """Whether its devices are attached and can run a program."""
        return self._name.generation is None

    @property
    def generation(self) -> str | None:
        """TPU generation, such as ``"v5e"``; None for cpu, gpu and TPUs unknown to the hardware table."""
        if self._name.generation is not None:
            return self._name.generation.name
        hardware = self.hardware
        return None if hardware is None else hardware.generation

    @property
    def hardware(self) -> Hardware | None:
        """What one of its devices can do; None for cpu, gpu and TPUs unknown to the hardware table."""
        if self._name.generation is not None:
            return HARDWARE[self._name.generation.name]
        return hardware_of(self.devices()[0].device_kind) if self.platform == "tpu" else None

    @property
    def num_devices(self) -> int:
        """JAX devices, over all slices and hosts."""
        if self._name.generation is not None:
            return self.num_chips * self._name.generation.devices_per_chip
        return len(self.devices())

    @property
    def num_chips(self) -> int:
        """Chips, over all slices; a CPU or GPU device counts as one."""
        if self._name.generation is not None:
            return math.prod(self._name.bounds) * self._name.slices
        if self.platform != "tpu":
            return self.num_devices
        return len({(getattr(device, "slice_index", 0), tuple(device.coords)) for device in self.devices()})

    @property
    def num_slices(self) -> int:
        """Slices: groups of chips joined by ICI; between slices there is only the data centre's network."""
        if self._name.generation is not None:
            return self._name.slices
        return len({getattr(device, "slice_index", 0) for device in self.devices()})

    @property
    def num_hosts(self) -> int:
        """Machines, each of which runs one process."""
        if self._name.generation is not None:
            host = self._name.generation.host_bounds(self._name.bounds)
            return self.num_chips // math.prod(host)
        return len({device.process_index for device in self.devices()})

    @property
    def topology(self) -> str | None:
        """Shape of one slice in chips, such as ``"2x4"``; None for cpu and gpu."""
        if self._name.generation is not None:
            return text(self._name.bounds)
        if self.platform != "tpu":
            return None
        coords = [tuple(device.coords) for device in self.devices()]
        bounds = tuple(max(axis) - min(axis) + 1 for axis in zip(*coords))
        flat = self.generation in ("v2", "v3", "v5e", "v6e")
        return text(bounds[:2] if flat else bounds)

    def devices(self) -> list[jax.Device]:
        """The attached devices; in a run over several processes, those of all processes.

        Raises:
            TargetError: the target is only described, or too few devices are attached.
        """
        if not self.attached:
            raise TargetError(
                f"target={self.name!r} is described, not attached: it can compile a program and cannot run it. To run, "
                f"use 'auto', 'cpu', 'gpu' or 'tpu'."
            )
        import jax

        try:
            devices = jax.devices(self.platform)
        except RuntimeError as error:
            raise TargetError(
                f"target={self.name!r}: JAX finds no {self.platform.upper()} here; {_ADVICE[self.platform]}"
            ) from error
        wanted = self._name.count
        if wanted is None:
            return list(devices)
        if wanted > len(devices):
            raise TargetError(
                f"target={self.name!r}: {wanted} devices were wanted and {len(devices)} are there; "
                f"{_too_few(self.platform, wanted)}"
            )
        if jax.process_count() > 1 and wanted != len(devices):
            raise TargetError(
                f"target={self.name!r}: {wanted} devices were wanted and the {jax.process_count()} processes of this "
                f"run have {len(devices)}; a part of them would leave processes without work: use '{self.platform}'"
            )
        return list(devices[:wanted])

    def mesh(self, axes: Mapping[str, int]) -> jax.sharding.Mesh | jax.sharding.AbstractMesh:
        """A mesh over all devices of the target.

        Args:
            axes: axis name to size, outermost first; one size may be -1, for the devices that are left. Over several
                slices, the first axis whose size the number of slices divides is the one that crosses slices.

        Returns:
            A ``Mesh`` of the attached devices, or an ``AbstractMesh`` for a described target; all axes are Auto.

        Raises:
            TargetError: the sizes do not multiply to ``num_devices``; the message names the axis.
        """
        import jax

        sizes = _mesh.resolve_axes(axes, self.num_devices, self.name)
        types = (jax.sharding.AxisType.Auto,) * len(sizes)
        if not self.attached:
            return jax.sharding.AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=types)
        placed = _mesh.arrange(self.devices(), tuple(sizes.values()))
        return jax.sharding.Mesh(placed, tuple(sizes), axis_types=types)

    @property
    def summary(self) -> str:
        """One line for people: ``"v5p-128: 64 devices, 64 chips (4x4x4), 16 hosts"``."""
        parts = [_counted(self.num_devices, "device")]
        if self.topology is not None:
            each = " a slice" if self.num_slices > 1 else ""
            parts.append(f"{_counted(self.num_chips, 'chip')} ({self.topology}{each})")
        if self.num_slices > 1:
            parts.append(_counted(self.num_slices, "slice"))
        parts.append(_counted(self.num_hosts, "host"))
        return f"{self.name}: {', '.join(parts)}" + ("" if self.attached else ", described")


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _best_attached() -> Name:
    import jax

    try:
        platform = jax.default_backend()
    except RuntimeError as error:
        raise TargetError(f"target='auto': JAX finds no devices here ({error}); check JAX_PLATFORMS") from error
    if platform not in _ADVICE:
        raise TargetError(f"target='auto': JAX runs on {platform!r} here, not on tpu, gpu or cpu; check JAX_PLATFORMS")
    return Name(platform)


def _ask_for_cpu_devices(count: int) -> None:
    """Have JAX show ``count`` CPU devices over all processes, unless it has listed its devices or shows enough."""
    import jax

    if "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        return  # the user's own number; whether it is enough is seen when the devices are listed
    share = math.ceil(count / _num_processes())
    if jax.config.jax_num_cpu_devices >= share:
        return
    with contextlib.suppress(RuntimeError):  # JAX has listed its devices: devices() says what to do if they are too few
        jax.config.update("jax_num_cpu_devices", share)


def _num_processes() -> int:
    """Processes of this run, without making JAX list its devices as ``jax.process_count()`` does."""
    import jax

    if not jax.distributed.is_initialized():
        return 1
    from jax._src import distributed  # the count has no public name before devices are listed

    return distributed.global_state.num_processes


def _too_few(platform: str, wanted: int) -> str:
    if platform == "cpu":
        return (
            f"JAX fixes the number when it first lists its devices: make Target('cpu:{wanted}') before that, or start "
            f"Python with XLA_FLAGS=--xla_force_host_platform_device_count={wanted}"
        )
    return f"use '{platform}' for all that are attached"

