"""Targets as objects: attached devices, described ones, equality, pickling, processes."""

from __future__ import annotations

import ast
import concurrent.futures
import copy
import dataclasses
import os
import pathlib
import pickle
import socket
import subprocess
import sys

import jax
import pytest

import systolic.target
from systolic._errors import TargetError
from systolic.target import HARDWARE, Target, _target


def _python(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    kept = {name: value for name, value in os.environ.items() if name not in ("JAX_PLATFORMS", "XLA_FLAGS")}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**kept, "JAX_PLATFORMS": "cpu", **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_cpu_is_all_cpu_devices():
    target = Target("cpu")
    assert target.devices() == jax.devices("cpu")
    assert target.num_devices == 8
    assert (target.platform, target.attached, target.topology, target.hardware) == ("cpu", True, None, None)
    assert (target.generation, target.num_hosts, target.num_slices, target.num_chips) == (None, 1, 1, 8)


def test_a_number_takes_the_first_devices():
    assert Target("cpu:3").devices() == jax.devices("cpu")[:3]
    assert Target("CPU:3").name == "cpu:3"


def test_auto_is_what_jax_runs_on():
    assert Target("auto") == Target("cpu")


def test_too_few_devices_says_how_to_get_more():
    jax.devices()
    with pytest.raises(TargetError, match=r"16 devices were wanted and 8 are there.*before that.*XLA_FLAGS"):
        Target("cpu:16")


@pytest.mark.parametrize("name", ["gpu", "gpu:2", "tpu", "tpu:4"])
def test_a_kind_that_is_not_attached_is_refused_when_made(name):
    with pytest.raises(TargetError, match=f"target='{name}': JAX finds no (GPU|TPU) here; "):
        Target(name)


def test_a_described_target_has_no_devices_to_run_on():
    with pytest.raises(TargetError, match=r"'v5e-8' is described, not attached.*cannot run"):
        Target("v5litepod-8").devices()


@pytest.mark.parametrize("name", ["cpu", "cpu:4", "v5e-8", "v6e-16x2", "v5p:4x4x16*2"])
def test_equal_hashable_picklable_copyable(name):
    target = Target(name)
    for other in (Target(target), pickle.loads(pickle.dumps(target)), copy.deepcopy(target), Target(name.upper())):
        assert other == target
        assert hash(other) == hash(target)
        assert other.name == target.name
    assert target != Target("v2-8")
    assert target != name


def test_a_target_cannot_be_changed():
    target = Target("v5e-8")
    with pytest.raises(AttributeError, match="make another"):
        target.platform = "cpu"
    with pytest.raises(AttributeError):
        target.colour = "red"


def test_a_described_target_has_its_generations_hardware():
    assert Target("v5p-8").hardware is HARDWARE["v5p"]


@pytest.mark.parametrize(
    ("name", "summary"),
    [
        ("v5p:4x4x4", "v5p-128: 64 devices, 64 chips (4x4x4), 16 hosts, described"),
        ("v6e-16x2", "v6e-16x2: 32 devices, 32 chips (4x4 a slice), 2 slices, 8 hosts, described"),
        ("v5e-1", "v5e-1: 1 device, 1 chip (1x1), 1 host, described"),
        ("cpu:8", "cpu:8: 8 devices, 1 host"),
    ],
)
def test_summary_tells_devices_from_chips(name, summary):
    assert Target(name).summary == summary


@dataclasses.dataclass
class _TpuDevice:
    """What an attached TPU's device tells, as far as a Target asks."""

    device_kind: str
    coords: tuple[int, int, int]
    core_on_chip: int = 0
    process_index: int = 0
    slice_index: int = 0
    platform: str = "tpu"


def _attach(monkeypatch, devices):
    monkeypatch.setattr(_target, "attached_devices", lambda name: devices)


def test_an_attached_tpu_is_read_off_its_devices(monkeypatch):
    devices = [_TpuDevice("TPU v5 lite", (x, y, 0), process_index=y // 2) for y in range(4) for x in range(2)]
    _attach(monkeypatch, devices)
    target = Target("tpu")
    assert (target.generation, target.topology, target.num_chips, target.num_devices) == ("v5e", "2x4", 8, 8)
    assert (target.num_hosts, target.num_slices, target.hardware) == (2, 1, HARDWARE["v5e"])


def test_two_devices_of_an_attached_chip_count_once(monkeypatch):
    _attach(
        monkeypatch,
        [_TpuDevice("TPU7x", (x, y, 0), core, s, s) for s in (0, 1) for x in (0, 1) for y in (0, 1) for core in (0, 1)],
    )
    target = Target("tpu")
    assert (target.topology, target.num_chips, target.num_devices) == ("2x2x1", 8, 16)
    assert (target.num_hosts, target.num_slices) == (2, 2)
    assert target.summary == "tpu: 16 devices, 8 chips (2x2x1 a slice), 2 slices, 2 hosts"


def test_an_attached_tpu_of_an_unknown_kind_has_no_numbers(monkeypatch):
    _attach(monkeypatch, [_TpuDevice("TPU v99", (0, 0, 0))])
    target = Target("tpu")
    assert (target.generation, target.hardware, target.num_chips) == (None, None, 1)


def test_cpu_with_a_number_makes_the_devices_in_a_fresh_process():
    code = "from systolic.target import Target; Target('cpu:2'); t = Target('cpu:6'); print(t.num_devices)"
    done = _python(code)
    assert (done.stdout.strip(), done.stderr) == ("6", "")


def test_the_users_own_device_count_is_respected():
    code = (
        "from systolic.target import Target\n"
        "print(Target('cpu:2').num_devices, Target('cpu').num_devices)\n"
        "try: Target('cpu:4')\n"
        "except Exception as error: print(type(error).__name__)"
    )
    done = _python(code, XLA_FLAGS="--xla_force_host_platform_device_count=3")
    assert done.stdout.split() == ["2", "3", "TargetError"]


def test_nothing_of_jax_is_imported_with_the_package():
    folder = pathlib.Path(systolic.target.__file__).parent
    for path in folder.glob("*.py"):
        for node in ast.parse(path.read_text()).body:  # top level only: imports inside functions are what is wanted
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
                assert not any(name.partition(".")[0] in ("jax", "numpy", "libtpu") for name in names), path.name


_TWO_PROCESSES = """
import sys, jax
jax.distributed.initialize(f"localhost:{sys.argv[2]}", 2, int(sys.argv[1]))
from systolic.target import Target
target = Target("cpu:6")
print(target.num_devices, target.num_hosts, len(jax.local_devices()), target.mesh({"data": -1}).shape["data"])
try: Target("cpu:2")
except Exception as error: print(type(error).__name__, "use 'cpu'" in str(error))
"""


def test_devices_of_several_processes_are_global():
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        runs = list(pool.map(lambda rank: _python(_TWO_PROCESSES, str(rank), str(port)), range(2)))
    for run in runs:
        assert run.stdout.splitlines() == ["6 2 3 6", "TargetError True"], run.stderr
