"""Where a program goes: devices that are attached, or TPUs that are only described."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from systolic._errors import TargetError
from systolic.target import _mesh
from systolic.target._attached import attached_devices, best_attached, cpu_will_have
from systolic.target._hardware import HARDWARE, Hardware, hardware_of
from systolic.target._names import Name, parse
from systolic.target._topology import text

if TYPE_CHECKING:
    import jax


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
            understood = best_attached()
        object.__setattr__(self, "_name", understood)
        # Refuse now what is not there, but leave JAX's devices unlisted where it can be: a larger "cpu:16" may follow.
        if self.attached and not (understood.platform == "cpu" and cpu_will_have(understood.count)):
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
        return attached_devices(self._name)

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
