"""Meshes: axis sizes against the number of devices."""

from __future__ import annotations

import math

import jax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from systolic._errors import TargetError
from systolic.target import Target, arrange, resolve_axes


def test_an_attached_mesh_holds_every_device_once():
    mesh = Target("cpu:8").mesh({"data": 4, "model": 2})
    assert isinstance(mesh, jax.sharding.Mesh)
    assert dict(mesh.shape) == {"data": 4, "model": 2}
    assert sorted(device.id for device in mesh.devices.flat) == list(range(8))
    assert set(mesh.axis_types) == {jax.sharding.AxisType.Auto}


def test_a_described_mesh_is_abstract():
    mesh = Target("v5p-128").mesh({"data": -1, "model": 8})
    assert isinstance(mesh, jax.sharding.AbstractMesh)
    assert dict(mesh.shape) == {"data": 8, "model": 8}
    assert set(mesh.axis_types) == {jax.sharding.AxisType.Auto}


@pytest.mark.parametrize(
    ("axes", "resolved"),
    [
        ({"data": -1}, {"data": 8}),
        ({"data": 8}, {"data": 8}),
        ({"data": -1, "model": 8}, {"data": 1, "model": 8}),
        ({"data": 2, "fsdp": -1, "model": 2}, {"data": 2, "fsdp": 2, "model": 2}),
        ({"data": 8, "model": 1}, {"data": 8, "model": 1}),
    ],
)
def test_minus_one_takes_what_is_left(axes, resolved):
    assert resolve_axes(axes, 8, "cpu:8") == resolved
    assert list(resolve_axes(axes, 8, "cpu:8")) == list(axes)


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"data": -1, "model": 3}, r"axis 'model' of size 3 does not fit target 'cpu:8'.*nothing whole is left"),
        ({"a": 4, "b": 4, "c": -1}, r"axis 'b' of size 4 does not fit.*a=4 x b=4 is 16, which does not divide its 8"),
        ({"data": 4, "model": 4}, r"is 16 devices, and target 'cpu:8' has 8 devices; make axis 'data' 2 instead of 4"),
        ({"data": 3, "model": 2}, r"is 6 devices, .*; make axis 'data' 4 instead of 3"),
        ({"data": 5, "model": 3}, r"is 15 devices, .*; choose sizes whose product is 8"),
        ({"data": -1, "model": -1}, r"'data' and 'model' are all -1"),
        ({"data": 0}, r"axis 'data' has size 0"),
        ({"data": -2}, r"axis 'data' has size -2"),
        ({"data": 2.0, "model": 4}, r"axis 'data' has size 2.0"),
        ({"data": True, "model": 8}, r"axis 'data' has size True"),
        ({"data": "8"}, r"axis 'data' has size '8'"),
        ({3: 8}, r"an axis name is a non-empty string, not 3"),
        ({}, r"a mapping from axis name to size"),
        (["data"], r"a mapping from axis name to size"),
    ],
)
def test_axes_that_do_not_fit_name_the_axis(axes, message):
    with pytest.raises(TargetError, match=message):
        Target("cpu:8").mesh(axes)


@settings(deadline=None)
@given(st.lists(st.integers(-1, 9), min_size=1, max_size=4), st.integers(1, 64))
def test_resolved_axes_always_multiply_to_the_devices(sizes, num_devices):
    axes = {f"axis{index}": size for index, size in enumerate(sizes)}
    try:
        resolved = resolve_axes(axes, num_devices, "some target")
    except TargetError:
        positive = [size for size in sizes if size > 0]
        whole = sizes.count(-1) == 1 and num_devices % math.prod(positive) == 0
        exact = sizes.count(-1) == 0 and math.prod(sizes) == num_devices
        assert 0 in sizes or not (whole or exact)
        return
    assert math.prod(resolved.values()) == num_devices
    assert all(size in (resolved[name], -1) for name, size in axes.items())


class _Device:
    platform = "cpu"

    def __init__(self, index: int, slice_index: int) -> None:
        self.index, self.slice_index = index, slice_index


def test_only_the_first_axis_that_the_slices_divide_crosses_slices():
    devices = [_Device(index, index // 6) for index in range(12)]
    placed = arrange(devices, (3, 4))  # 2 slices do not divide 3, they divide 4
    assert placed.shape == (3, 4)
    assert [[device.slice_index for device in row] for row in placed] == [[0, 0, 1, 1]] * 3
    placed = arrange(devices, (2, 6))
    assert [{device.slice_index for device in row} for row in placed] == [{0}, {1}]
    assert sorted(device.index for device in placed.flat) == list(range(12))
