"""libtpu kept quiet and made to compile, for every generation, without a TPU."""

from __future__ import annotations

import concurrent.futures
import os
import subprocess
import sys

import pytest

from systolic._errors import TargetError
from systolic.target import (
    HARDWARE,
    Target,
    _libtpu,
    compile_devices,
    compiler_environment,
    libtpu_version,
    prepare_process,
    quiet_environment,
    tpu_attached,
)

needs_libtpu = pytest.mark.skipif(libtpu_version() is None or tpu_attached(), reason="needs libtpu, and no TPU")


def _clean_environment() -> dict[str, str]:
    """The environment of a user who has set nothing."""
    ours = ("JAX_PLATFORMS", "TPU_SKIP_MDS_QUERY", "TPU_WORKER_HOSTNAMES", "TPU_ACCELERATOR_TYPE", "XLA_FLAGS")
    return {name: value for name, value in os.environ.items() if name not in ours}


def _python(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**_clean_environment(), **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


@needs_libtpu
@pytest.mark.parametrize(
    "code",
    [
        "import systolic, jax; print(jax.devices())",
        "import jax, systolic; print(jax.devices())",
        "import systolic.target as t; t.prepare_process(); import jax; print(jax.devices())",
        "import jax, systolic.target as t; t.prepare_process(); t.prepare_process(); print(jax.devices())",
        "import systolic.target as t; t.prepare_process(); print(t.Target('auto').devices())",
    ],
)
def test_no_libtpu_line_is_seen(code):
    done = _python(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[CpuDevice(id=0)]\n", "")


def test_the_users_choice_of_platforms_is_kept(monkeypatch):
    monkeypatch.setattr(_libtpu, "quiet_environment", lambda: {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1"})
    monkeypatch.setenv("JAX_PLATFORMS", "tpu")
    monkeypatch.setenv("TPU_SKIP_MDS_QUERY", "0")
    prepare_process()
    assert os.environ["JAX_PLATFORMS"] == "tpu"
    assert os.environ["TPU_SKIP_MDS_QUERY"] == "0"


def test_where_a_tpu_is_attached_nothing_is_set_and_the_lock_stays(monkeypatch):
    monkeypatch.setattr(_libtpu, "tpu_attached", lambda: True)
    monkeypatch.setattr(_libtpu, "_libtpu_installed", lambda: True)
    assert quiet_environment() == {}
    assert "ALLOW_MULTIPLE_LIBTPU_LOAD" not in compiler_environment(Target("v5e-8"))
    monkeypatch.setattr(_libtpu, "tpu_attached", lambda: False)
    assert compiler_environment(Target("v5e-8"))["ALLOW_MULTIPLE_LIBTPU_LOAD"] == "1"


def test_without_libtpu_nothing_is_set_and_a_compile_names_the_extra(monkeypatch):
    monkeypatch.setattr(_libtpu, "_libtpu_installed", lambda: False)
    assert quiet_environment() == {}
    for refused in (compiler_environment, compile_devices):
        with pytest.raises(TargetError, match=r"target='v5e-8'.*not installed.*systolic\[tpu\]"):
            refused(Target("v5e-8"))


def test_attached_targets_have_no_compiler_environment():
    with pytest.raises(TargetError, match="a described target"):
        compiler_environment(Target("cpu"))


@needs_libtpu
def test_a_dump_folder_joins_the_users_flags(monkeypatch):
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_tpu_scoped_vmem_limit_kib=1024")
    flags = compiler_environment(Target("v5e-8"), "/some/folder")["LIBTPU_INIT_ARGS"].split()
    assert flags[:2] == ["--xla_tpu_scoped_vmem_limit_kib=1024", "--xla_jf_dump_to=/some/folder"]
    with pytest.raises(TargetError, match="white space"):
        compiler_environment(Target("v5e-8"), "/some folder")


_COMPILE = """
import sys
import jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P
from systolic.target import Target, compile_mesh

for name in sys.argv[1:]:
    target = Target(name)
    mesh = compile_mesh(target, {"data": -1})
    rows = jax.ShapeDtypeStruct((8 * target.num_devices, 256), jnp.bfloat16, sharding=NamedSharding(mesh, P("data")))
    weights = jax.ShapeDtypeStruct((256, 256), jnp.bfloat16, sharding=NamedSharding(mesh, P()))
    step = jax.jit(lambda x, w: jnp.sum((x @ w).astype(jnp.float32)), out_shardings=NamedSharding(mesh, P()))
    text = step.trace(rows, weights).lower(lowering_platforms=("tpu",)).compile().as_text()
    devices = list(mesh.devices.flat)
    print(target.name, len({d.process_index for d in devices}), len({getattr(d, "slice_index", 0) for d in devices}),
          "all-reduce" in text)
"""

# One chip, one host, a few hosts, two slices, for every generation.
_NAMES = {
    "v2": ["v2-8", "v2-32", "v2-8x2"],
    "v3": ["v3-8", "v3-64", "v3-8x2"],
    "v4": ["v4-2", "v4-4", "v4-8", "v4-32", "v4-16x2"],
    "v5e": ["v5e-1", "v5e-4", "v5e-8", "v5e-32", "v5e-1x2", "v5e-16x2"],
    "v5p": ["v5p-2", "v5p-4", "v5p-8", "v5p-128", "v5p:2x2x1*2"],
    "v6e": ["v6e-1", "v6e-4", "v6e-8", "v6e-64", "v6e-16x2"],
    "tpu7x": ["tpu7x-2", "tpu7x-4", "tpu7x-8", "tpu7x-64", "tpu7x-16x2"],
}


def _compile(names: list[str], **environment: str) -> list[str]:
    done = _python(_COMPILE, *names, **compiler_environment(Target(names[0])), **environment)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.mark.slow
@needs_libtpu
@pytest.mark.parametrize("generation", list(HARDWARE))
def test_every_generation_compiles_from_one_chip_to_two_slices(generation):
    targets = [Target(name) for name in _NAMES[generation]]
    lines = _compile([target.name for target in targets])
    assert lines == [
        f"{target.name} {target.num_hosts} {target.num_slices} {target.num_devices > 1}" for target in targets
    ]


@pytest.mark.slow
@needs_libtpu
def test_two_children_compile_at_once():
    with concurrent.futures.ThreadPoolExecutor() as pool:
        first, second = pool.map(_compile, [["v5e-8"], ["v6e-8"]])
    assert (first, second) == (["v5e-8 1 1 True"], ["v6e-8 1 1 True"])


@pytest.mark.slow
@needs_libtpu
def test_the_schedule_is_dumped(tmp_path):
    target = Target("v5e-4")
    done = _python(_COMPILE, target.name, **compiler_environment(target, tmp_path))
    assert done.returncode == 0, done.stderr
    (dump,) = tmp_path.glob("*TLP-hlo.txt")
    assert "is_scheduled=true" in dump.read_text()


def test_a_compile_leaves_its_log_files_in_the_dump_folder(tmp_path):
    environment = compiler_environment(Target("v5e-1"), dump_dir=tmp_path)
    assert environment["TMPDIR"] == str(tmp_path)
