"""Arranging devices into a mesh: axis sizes checked, neighbours on the torus kept together, slices outermost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from systolic._errors import TargetError

if TYPE_CHECKING:
    import jax
    import numpy as np


def check_axes(axes: Mapping[str, int]) -> dict[str, int]:
    """The axes of a mesh as whole numbers, as far as they can be checked before the number of devices is known.

    Args:
        axes: axis name to size, outermost first; at most one size may be -1.

    Raises:
        TargetError: an axis is no name with a size of at least 1, or two are -1.
    """
    if not isinstance(axes, Mapping) or not axes:
        raise TargetError(f"axes={axes!r}: a mapping from axis name to size was wanted, such as {{'data': -1}}")
    for name, size in axes.items():
        if not isinstance(name, str) or not name:
            raise TargetError(f"axes: an axis name is a non-empty string, not {name!r}")
        if isinstance(size, bool) or not hasattr(type(size), "__index__") or (size < 1 and size != -1):
            raise TargetError(f"axes: axis {name!r} has size {size!r}; a whole number of at least 1, or -1, was wanted")
    sizes = {name: int(size) for name, size in axes.items()}
    open_axes = [name for name, size in sizes.items() if size == -1]
    if len(open_axes) > 1:
        raise TargetError(f"axes: {' and '.join(map(repr, open_axes))} are all -1; only one axis can take what is left")
    return sizes


def resolve_axes(axes: Mapping[str, int], num_devices: int, target: str) -> dict[str, int]:
    """Check the axes of a mesh, and give an axis of size -1 the devices that are left.

    Args:
        axes: axis name to size, outermost first; at most one size may be -1.
        num_devices: devices of the target.
        target: the target's name, for messages.

    Returns:
        The axes with sizes whose product is ``num_devices``.

    Raises:
        TargetError: an axis is no name with a size of at least 1, two are -1, or the product does not fit.
    """
    sizes = check_axes(axes)
    open_axes = [name for name, size in sizes.items() if size == -1]
    fixed = {name: size for name, size in sizes.items() if size != -1}
    product = math.prod(fixed.values())
    written = " x ".join(f"{name}={size}" for name, size in fixed.items())
    devices = "1 device" if num_devices == 1 else f"{num_devices} devices"
    if open_axes:
        if num_devices % product:
            culprit = next((name for name, size in fixed.items() if num_devices % size), next(reversed(fixed)))
            raise TargetError(
                f"axes: axis {culprit!r} of size {fixed[culprit]} does not fit target {target!r}: {written} is "
                f"{product}, which does not divide its {devices}, so nothing whole is left for {open_axes[0]!r}"
            )
        sizes[open_axes[0]] = num_devices // product
    elif product != num_devices:
        culprit = max(fixed, key=lambda name: fixed[name])
        others = product // fixed[culprit]
        fix = (
            f"make axis {culprit!r} {num_devices // others} instead of {fixed[culprit]}"
            if num_devices % others == 0
            else f"choose sizes whose product is {num_devices}"
        )
        raise TargetError(
            f"axes: {written} is {product} devices, and target {target!r} has {devices}; {fix}, or make one axis -1"
        )
    return sizes


def arrange(devices: Sequence[jax.Device], shape: Sequence[int]) -> np.ndarray:
    """Place devices in a mesh of ``shape`` so that collectives along its axes run over short ICI paths.

    Devices of several slices are split along the first axis that the number of slices divides, so that only this axis
    crosses the data centre's network. Where JAX knows no good placement for a shape, the devices' own order is used.

    Args:
        devices: as many as ``shape`` holds, attached or described.
        shape: sizes of the mesh axes, outermost first.

    Returns:
        Array of devices, of shape ``shape``.
    """
    import numpy as np

    slices: dict[int, list[jax.Device]] = {}
    for device in devices:
        slices.setdefault(getattr(device, "slice_index", 0), []).append(device)
    if len(slices) == 1 or len({len(members) for members in slices.values()}) > 1:
        return _arrange_slice(list(devices), tuple(shape))
    axis = next((axis for axis, size in enumerate(shape) if size % len(slices) == 0), None)
    if axis is None:
        return np.array([device for _, members in sorted(slices.items()) for device in members], object).reshape(shape)
    inner = tuple(size // len(slices) if each == axis else size for each, size in enumerate(shape))
    return np.concatenate([_arrange_slice(members, inner) for _, members in sorted(slices.items())], axis=axis)


def _arrange_slice(devices: list[jax.Device], shape: tuple[int, ...]) -> np.ndarray:
    import numpy as np
    from jax.experimental import mesh_utils

    if devices[0].platform == "tpu":
        try:
            return np.asarray(mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True))
        except (NotImplementedError, ValueError, AssertionError):
            pass  # JAX knows no placement (the devices are no full box, say): any order is correct, only slower
    return np.array(devices, object).reshape(shape)
