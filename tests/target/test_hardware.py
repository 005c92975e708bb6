"""Hardware numbers against each other, against JAX's own table, and against the compiler."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import subprocess
import sys

import pytest

from systolic.target import HARDWARE, Target, compiler_environment, known_targets, libtpu_version
from systolic.target._hardware import hardware_of

GENERATIONS = list(HARDWARE)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_every_number_has_a_source(generation):
    row = HARDWARE[generation]
    numbers = {field.name for field in dataclasses.fields(row)} - {"generation", "device_name", "source"}
    assert set(row.source) == numbers
    for name in numbers:
        assert row.source[name]
        if getattr(row, name) is None:
            assert row.source[name].startswith(("unknown", "none"))


def test_rows_are_per_device():
    # v5p joins the two TensorCores of its chip in one device; TPU7x shows them as two.
    assert HARDWARE["v5p"].peak_bf16 == 459e12
    assert HARDWARE["tpu7x"].peak_bf16 == 2307e12 / 2
    assert HARDWARE["tpu7x"].hbm_bandwidth == 7380e9 / 2
    assert HARDWARE["tpu7x"].sparse_cores == 2
    assert HARDWARE["v5e"].peak_f32 == pytest.approx(32.83e12, rel=1e-3)


def test_clocks_are_the_published_ones():
    # 700, 940 and 1050 MHz for v2, v3 and v4 in Google's papers; 1.5 GHz for v5e in the scaling book.
    for generation, hertz in {"v2": 700e6, "v3": 940e6, "v4": 1050e6, "v5e": 1.5e9}.items():
        assert HARDWARE[generation].clock_hz == pytest.approx(hertz, rel=0.01)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_numbers_agree_with_the_table_of_pallas(generation):
    from jax.experimental.pallas import tpu as pltpu

    row = HARDWARE[generation]
    version = pltpu.ChipVersion(generation.removeprefix("tpu"))
    info = pltpu.get_tpu_info_for_chip(version, row.cores_per_device)
    assert row.vmem_bytes == info.vmem_capacity_bytes * row.cores_per_device
    assert row.mxu_size == info.mxu_column_size
    # Pallas rounds and for v3 counts a higher clock than the cloud's page: within a sixth.
    assert row.peak_bf16 == pytest.approx(info.bf16_ops_per_second * row.cores_per_device, rel=1 / 6)
    assert row.hbm_bandwidth == pytest.approx(info.mem_bw_bytes_per_second * row.cores_per_device, rel=1 / 8)
    # What is fitted, which Pallas gives in rounded decimal gigabytes, less what the runtime keeps.
    assert row.hbm_bytes == pytest.approx(info.hbm_capacity_bytes * row.cores_per_device, rel=0.08)
    if info.int8_ops_per_second and row.peak_int8 is not None:
        assert row.peak_int8 == pytest.approx(info.int8_ops_per_second * row.cores_per_device, rel=0.01)


def test_an_attached_device_is_found_by_its_kind():
    assert hardware_of("TPU v5 lite") is HARDWARE["v5e"]
    assert hardware_of("TPU v5") is hardware_of("TPU v5p") is HARDWARE["v5p"]
    assert hardware_of("TPU v99") is None


def test_a_row_survives_pickling():
    assert pickle.loads(pickle.dumps(HARDWARE["v5e"])) is HARDWARE["v5e"]


_MEASURE = """
import json, re, sys
import jax, jax.numpy as jnp
from jax.sharding import SingleDeviceSharding
from systolic.target import Target, compile_devices

device = compile_devices(Target(sys.argv[1]))[0]
def compiled(function, shape, dtype):
    argument = jax.ShapeDtypeStruct(shape, dtype, sharding=SingleDeviceSharding(device))
    return jax.jit(function).trace(argument).lower(lowering_platforms=("tpu",)).compile()

try:
    compiled(lambda x: x + 1, (1 << 18, 1 << 18), jnp.float32)
except jax.errors.JaxRuntimeError as error:
    gib = float(re.search(r"exceeds available HBM \\(([0-9.]+)G\\)", str(error)).group(1))
text = compiled(lambda x: x @ x, (4096, 4096), jnp.bfloat16).as_text()
cycles = sum(int(each) for each in re.findall(r'"estimated_cycles":"(\\d+)"', text))
print(json.dumps({"gib": gib, "cycles": cycles, "kind": device.device_kind, "cores": device.num_cores}))
"""


@pytest.mark.slow
@pytest.mark.skipif(libtpu_version() is None, reason="needs libtpu")
@pytest.mark.parametrize("generation", GENERATIONS)
def test_numbers_agree_with_the_compiler(generation):
    target = Target(known_targets(generation)[0])
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, target.name],
        env={**os.environ, **compiler_environment(target)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    measured, row = json.loads(done.stdout), HARDWARE[generation]
    assert measured["kind"] == row.device_name
    assert measured["cores"] == row.cores_per_device
    assert row.hbm_bytes / 2**30 == pytest.approx(measured["gib"], abs=0.006)  # printed with two decimals
    # The compiler reckons a large matrix product at just under the array's full rate.
    assert 0.88 < 2 * 4096**3 / measured["cycles"] / row.flops_per_cycle <= 1
