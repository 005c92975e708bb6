"""Compiles for described targets: the child process, its limits and crashes, and the cache of results."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pathlib
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from systolic import _errors
from systolic.program import CompileOptions, CompilerCrash, Program, _child, _runner
from systolic.program import _described as described_module
from systolic.program._job_folder import job_folder, sweep
from systolic.program._quick_trace import quick_trace
from systolic.target import libtpu_version

pytestmark = pytest.mark.skipif(libtpu_version() is None, reason="needs libtpu")

f32 = np.float32


def shape(*dims, dtype=f32):
    return jax.ShapeDtypeStruct(dims, dtype)


def layer(state, x, unused):
    del unused
    return {"w": state["w"] - 0.1 * (x.T @ x)}, jnp.tanh(x @ state["w"])


def a_layer(**kwargs):
    options = {"donate": (0,), "in_specs": (P(), P("data"), P()), "out_specs": (P(), P("data"))} | kwargs
    return Program(layer, {"w": shape(256, 256)}, shape(64, 256), shape(7), name="layer", **options)


@pytest.fixture
def fresh_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SYSTOLIC_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def children_of(pid: int) -> list[int]:
    out = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[1]) == pid and fields[0] != "Z":
                out.append(int(entry.name))
    return out


def compilers(pid: int) -> list[int]:
    out = []
    for child in children_of(pid):
        try:
            if b"systolic.program._child" in pathlib.Path(f"/proc/{child}/cmdline").read_bytes():
                out.append(child)
        except OSError:
            continue
    return out


def wait_until(condition, seconds=30.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False


def test_bytes_names_and_donation_of_a_sharded_program(fresh_cache):
    found = a_layer().compile("v5e-8")
    assert found.cache == "miss"
    # Per device: w whole, an eighth of x, and the unused vector padded to a tile of 128.
    assert found.memory.argument == 256 * 256 * 4 + 8 * 256 * 4 + 512
    assert found.memory.alias == 256 * 256 * 4
    assert list(found.argument_names) == ["state/w", "x", "unused"]
    assert found.donated == (0,)
    assert "is_scheduled=true" in found.hlo_text
    assert "stablehlo" in found.lower_text()
    assert len(found.serialize()) > 1000
    assert found.cost["flops"] > 0
    assert pickle.loads(pickle.dumps(found)).hlo_text == found.hlo_text
    assert found.to_json()["target"] == "v5e-8"


def test_a_second_compile_comes_from_the_cache_without_a_compiler(fresh_cache, monkeypatch):
    first = a_layer().compile("v5e-8")
    monkeypatch.setattr(described_module, "run_compiler", lambda *a, **k: pytest.fail("the compiler was started"))
    second = a_layer().compile("v5e-8")
    assert second.cache == "hit"
    assert second.hlo_text == first.hlo_text
    assert second.memory == first.memory
    assert second.serialize() == first.serialize()


def test_the_key_tells_apart_what_the_compiler_would():
    def key(program, target="v5e-8", depth="fast"):
        target = described_module.Target(target)
        exported = described_module.export(
            program.fn,
            program.example,
            name="layer",
            mesh=target.mesh(program.axes),
            donate=program.donate,
            in_specs=program.in_specs,
            out_specs=program.out_specs,
        )
        return described_module._key(exported, target, CompileOptions(depth=depth))

    same = key(a_layer())
    assert same == key(a_layer())
    others = [
        key(a_layer(donate=())),
        key(a_layer(in_specs=(P("data"), P("data"), P()), out_specs=(P("data"), P("data")))),
        key(a_layer(out_specs=None)),
        key(a_layer(axes={"data": 4, "model": 2})),
        key(a_layer(), target="v6e-8"),
        key(a_layer(), depth="full"),
    ]
    assert len({same, *others}) == 1 + len(others)


def test_moving_the_code_to_another_line_keeps_the_key():
    keys = set()
    for blank_lines in (0, 5):
        scope: dict = {}
        exec(compile("\n" * blank_lines + "def f(x):\n    return x * 2 + 1\n", "f.py", "exec"), scope)
        target = described_module.Target("v5e-1")
        exported = described_module.export(
            scope["f"], (shape(8),), name="f", mesh=target.mesh({"data": -1}), donate=(), in_specs=None, out_specs=None
        )
        keys.add(exported.fingerprint)
    assert len(keys) == 1


def test_a_damaged_entry_is_rebuilt(fresh_cache):
    a_layer().compile("v5e-8", CompileOptions(depth="schedule"))
    (text,) = fresh_cache.glob("described/*/hlo.txt.gz")
    data = bytearray(text.read_bytes())
    data[len(data) // 2] ^= 0xFF
    text.write_bytes(bytes(data))
    assert a_layer().compile("v5e-8", CompileOptions(depth="schedule")).cache == "miss"
    assert a_layer().compile("v5e-8", CompileOptions(depth="schedule")).cache == "hit"


def test_the_schedule_alone_has_text_and_no_code(fresh_cache):
    found = a_layer().compile("v5e-8", CompileOptions(depth="schedule"))
    assert found.memory is None
    assert "is_scheduled=true" in found.hlo_text
    with pytest.raises(_errors.CompileError, match="depth 'schedule' generates no code"):
        found.serialize()


@pytest.mark.parametrize("off", ["by option", "by environment"])
def test_without_the_cache_nothing_is_written(fresh_cache, monkeypatch, off):
    if off == "by environment":
        monkeypatch.setenv("SYSTOLIC_CACHE", "off")
    found = a_layer().compile("v5e-8", CompileOptions(depth="schedule", cache=off != "by option"))
    assert found.cache == "miss"
    assert not (fresh_cache / "described").exists()


def test_a_program_too_large_says_by_how_much(fresh_cache):
    rows, inner = 32768, 60000
    program = Program(
        lambda a, b, c: (jnp.sin(a) @ b, a + c), shape(rows, inner), shape(inner, 2048), shape(rows, inner)
    )
    with pytest.raises(_errors.OutOfDeviceMemoryError, match=r"GiB more than the 15\.75 GiB") as caught:
        program.compile("v5e-1")
    error = caught.value
    # Three arrays of rows × inner, the narrow one (its 60,000 rounded up to a tile), and the product.
    by_hand = 4 * (3 * rows * inner + inner * 2048 + rows * 2048)
    assert error.needed_bytes == pytest.approx(by_hand, rel=0.01)
    assert error.available_bytes == pytest.approx(15.75 * 2**30, rel=1e-6)
    assert "is_scheduled=true" in error.schedule.hlo_text
    with pytest.raises(_errors.OutOfDeviceMemoryError) as again:
        program.compile("v5e-1")
    assert again.value.schedule.cache == "hit"
    assert pickle.loads(pickle.dumps(error)).needed_bytes == error.needed_bytes


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT])
def test_a_compiler_that_dies_is_an_error_and_the_caller_lives_on(fresh_cache, number):
    def strike(seconds, stage):
        for child in compilers(os.getpid()):
            os.kill(child, number)

    with pytest.raises(CompilerCrash, match=r"killed from outside|crashed \(SIGABRT\)") as caught:
        a_layer().compile("v5e-8", CompileOptions(on_progress=strike))
    assert "program 'layer'" in str(caught.value)
    assert not compilers(os.getpid())
    assert not list(fresh_cache.glob("described/*"))


def test_numbers_of_64_bits_stay_that_where_jax_was_told_to_keep_them():
    with jax.enable_x64(True):
        program = Program(lambda n, x: (n + 1, x * 2), shape(dtype=np.int64), shape(8, dtype=np.float32))
        description = program.compile("v5e-1", CompileOptions(depth="schedule"))
    assert "(s64[])" in description.hlo_text or "s64[]" in description.hlo_text


SCHEDULE = """HloModule jit_f, is_scheduled=true

ENTRY %main (p0: f32[8]) -> f32[8] {
  %p0 = f32[8]{0} parameter(0)
  ROOT %add = f32[8]{0} add(%p0, %p0)
}
"""


@pytest.mark.parametrize("depth", ["fast", "full"])
def test_a_compiler_killed_while_it_generates_code_is_no_verdict(fresh_cache, monkeypatch, tmp_path, depth):
    # As by the kernel where memory is short: the schedule is written already.
    (tmp_path / "schedule").write_text(SCHEDULE)
    script = f'cp {tmp_path}/schedule "$0"/dump/module_0001.jit_f.TLP-hlo.txt; sleep 0.3; kill -9 $$'
    start = subprocess.Popen
    monkeypatch.setattr(
        _runner.subprocess,
        "Popen",
        lambda command, **options: start(
            command if command[0] == "/bin/sh" else ["/bin/sh", "-c", script, command[-1]], **options
        ),
    )
    with pytest.raises(CompilerCrash, match="was killed from outside"):
        a_layer().compile("v5e-8", CompileOptions(depth=depth))
    assert not list(fresh_cache.glob("described/*"))


@pytest.mark.parametrize(
    ("said", "kind", "kept"),
    [
        ({"failed": "OSError: [Errno 28] No space left on device"}, CompilerCrash, 0),
        ({"failed": "ImportError: no module"}, CompilerCrash, 0),
        ({"error": "UNIMPLEMENTED: no such operation"}, _errors.CompileError, 1),
    ],
)
def test_only_what_the_compiler_itself_says_is_remembered(fresh_cache, monkeypatch, said, kind, kept):
    script = f"import pathlib, sys; pathlib.Path(sys.argv[1], 'result.json').write_text({json.dumps(said)!r})"
    start = subprocess.Popen
    monkeypatch.setattr(
        _runner.subprocess,
        "Popen",
        lambda command, **options: start(
            command if command[0] == "/bin/sh" else [sys.executable, "-c", script, command[-1]], **options
        ),
    )
    with pytest.raises(_errors.CompileError, match=re.escape(next(iter(said.values())).split(": ")[1])) as caught:
        a_layer().compile("v5e-8")
    assert type(caught.value) is kind
    assert len(list(fresh_cache.glob("described/*"))) == kept


def test_a_failure_in_the_compilers_process_is_told_apart_from_a_refusal(tmp_path, monkeypatch):
    job = {"parent": os.getppid(), "target": "v5e-1", "axes": {"data": 1}, "name": "p", "donated": [], "depth": "full"}
    (tmp_path / "job.json").write_text(json.dumps(job))
    (tmp_path / "program.bin").write_bytes(b"")
    for error, key in ((OSError(28, "No space left"), "failed"), (jax.errors.JaxRuntimeError("INTERNAL: no"), "error")):

        def fail(*_, error=error):
            raise error

        monkeypatch.setattr(_child, "_die_with", lambda parent: None)
        monkeypatch.setattr(_child, "_lower", fail)
        assert _child.main(tmp_path) == 0
        assert list(json.loads((tmp_path / "result.json").read_text())) == [key]


def test_the_time_limit_stops_the_compiler(fresh_cache):
    with pytest.raises(_errors.CompileTimeoutError, match=r"time limit of 0\.3 s"):
        a_layer().compile("v5e-8", CompileOptions(time_limit=0.3))
    assert not compilers(os.getpid())


def test_the_memory_limit_stops_the_compiler(fresh_cache):
    with pytest.raises(_errors.CompileError, match="of this machine's memory") as caught:
        a_layer().compile("v5e-8", CompileOptions(memory_limit=30 << 20))
    assert isinstance(caught.value, MemoryError)
    assert not compilers(os.getpid())


SCRIPT = """
import systolic.target
systolic.target.prepare_process()
import jax
from systolic.program import CompileOptions, Program
program = Program(lambda x: jax.numpy.sort(x), jax.ShapeDtypeStruct((1 << 21,), "float32"))
if __name__ == "__main__":
    print("ready", flush=True)
    program.compile("v5e-1", CompileOptions(cache=False, depth="full"))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_compiler_outlives_its_caller(tmp_path, number):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)}
    caller = subprocess.Popen(
        [sys.executable, str(script)], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        assert wait_until(lambda: compilers(caller.pid))
        (compiler,) = compilers(caller.pid)
        caller.send_signal(number)
        caller.wait(timeout=30)
        assert wait_until(lambda: not pathlib.Path(f"/proc/{compiler}").exists())
        assert wait_until(lambda: not list(tmp_path.glob("systolic-compile-*")))
    finally:
        caller.kill()
        caller.wait()


def test_what_a_loss_of_power_left_is_swept_away_and_what_is_in_use_stays(tmp_path):
    with job_folder("p") as used:
        ours = used.name.partition(f"{os.getpid()}-")[0]
    gone, used = tmp_path / f"{ours}{2**22 + 1}-abc", tmp_path / used.name
    elsewhere = tmp_path / f"systolic-compile-0f0ther0-{2**22 + 1}-abc"  # of a container with the same /tmp
    for folder in (gone, used, elsewhere):
        (folder / "dump").mkdir(parents=True)
    sweep(tmp_path)
    assert {folder.name for folder in tmp_path.iterdir()} == {used.name, elsewhere.name}


def test_a_job_leaves_neither_folder_nor_process(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = children_of(os.getpid())
    with contextlib.suppress(ZeroDivisionError), job_folder("p") as folder:
        (folder / "file").write_text("")
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir())
    assert children_of(os.getpid()) == before


def full(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("when", ["the folder is made", "the program is written", "the compiler runs", "it dies"])
def test_a_full_disk_is_called_that_with_its_folder(fresh_cache, tmp_path, monkeypatch, when):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if when == "the folder is made":
        monkeypatch.setattr(tempfile, "mkdtemp", full)
    elif when == "the program is written":
        monkeypatch.setattr(pathlib.Path, "write_bytes", full)
    else:
        said = "pathlib.Path(sys.argv[1], 'result.json').write_text('{\"failed\": \"OSError: no space\"}')"
        script = f"import pathlib, sys; {said if when == 'the compiler runs' else 'sys.exit(1)'}"
        start = subprocess.Popen
        monkeypatch.setattr(
            _runner.subprocess,
            "Popen",
            lambda command, **options: start(
                command if command[0] == "/bin/sh" else [sys.executable, "-c", script, command[-1]], **options
            ),
        )
        write = pathlib.Path.write_bytes
        monkeypatch.setattr(
            pathlib.Path, "write_bytes", lambda path, data: full() if path.name == "probe" else write(path, data)
        )
    with pytest.raises(CompilerCrash, match=rf"'layer' was not compiled: the disk of {tmp_path} is full .*set TMPDIR"):
        a_layer().compile("v5e-8")
    monkeypatch.undo()
    assert not list(tmp_path.glob("systolic-compile-*"))


def test_a_hit_needs_no_libtpu_and_prints_nothing(fresh_cache, tmp_path):
    script = tmp_path / "hit.py"
    script.write_text(
        textwrap.dedent(
            """
            import systolic.target
            systolic.target.prepare_process()
            import jax
            from systolic.program import Program
            found = Program(lambda x: x * 2, jax.ShapeDtypeStruct((256,), "float32")).compile("v5e-1")
            maps = open("/proc/self/maps").read()
            print(found.cache, "libtpu" in maps)
            """
        )
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    runs = [
        subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=120)
        for _ in range(2)
    ]
    assert [run.stdout.split() for run in runs] == [["miss", "False"], ["hit", "False"]], runs[0].stderr
    assert [run.stderr for run in runs] == ["", ""]


def test_an_operation_without_a_tpu_lowering_is_named():
    program = Program(lambda x: jnp.linalg.eig(x), shape(8, 8), name="modes")
    with pytest.raises(_errors.CompileError, match=r"'modes'.*'eig' has no TPU lowering"):
        program.compile("v5e-1")


def test_a_type_that_cannot_be_exported_is_named():
    program = Program(lambda x: x + x, shape(8, dtype=jnp.int2), name="tiny")
    with pytest.raises(_errors.CompileError, match=r"'tiny'.*int2"):
        program.compile("v5e-1")


def test_a_compiler_that_refuses_to_start_says_why(fresh_cache, monkeypatch):
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_no_such_flag=1")
    with pytest.raises(_errors.CompileError, match=r"ended with status 1.*xla_no_such_flag"):
        a_layer().compile("v5e-8")


def test_keys_of_random_numbers_are_arguments_like_others(fresh_cache):
    key = jax.eval_shape(lambda: jax.random.key(0))
    program = Program(lambda key, x: x + jax.random.normal(key, x.shape), key, shape(8, 128))
    assert program.compile("v5e-1", CompileOptions(depth="schedule")).argument_names == ("key", "x")


def test_progress_is_reported(fresh_cache):
    seen = []
    a_layer().compile("v5e-8", CompileOptions(on_progress=lambda seconds, stage: seen.append((seconds, stage))))
    assert seen[0][1] == "starting the compiler"
    assert [seconds for seconds, _ in seen] == sorted(seconds for seconds, _ in seen)


@pytest.mark.parametrize("bad", [{"depth": "deep"}, {"time_limit": 0}, {"memory_limit": -1}])
def test_bad_options_are_refused(bad):
    with pytest.raises(_errors.InputError, match=next(iter(bad))):
        CompileOptions(**bad)


def test_tracing_quickly_leaves_jax_as_it_was():
    before = jax.core.Tracer.__dict__["sharding"]

    def program(x):
        assert getattr(x, "sharding", None) is None
        return x + 1

    for _ in range(2):
        with quick_trace(), quick_trace():
            jax.jit(lambda x: program(x)).trace(1.0)
        assert jax.core.Tracer.__dict__["sharding"] is before
    with pytest.raises(ZeroDivisionError), quick_trace():
        jax.jit(lambda x: x + 1 / 0).trace(1.0)
    assert jax.core.Tracer.__dict__["sharding"] is before
