"""A Program compiled for attached devices: results, donation, layouts, the recompile guard, the cache."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from systolic import CompileOptions, InputError, Program, ProgramSet, RecompileError, Target, TargetError
from systolic.program import cache_dir

F32 = "float32"
ROWS = PartitionSpec("data")


def scaled(x, factor):
    return x * factor


def zeros(*shape, dtype=F32):
    return np.zeros(shape, dtype)


def test_a_program_computes_what_its_function_does():
    x, y = np.arange(6, dtype=F32).reshape(2, 3), np.arange(3, dtype=F32)
    executable = Program(lambda a, b: {"sum": a @ b, "max": b.max()}, zeros(2, 3), zeros(3)).compile("cpu")
    out = executable(x, y)
    np.testing.assert_array_equal(out["sum"], [5.0, 14.0])  # 0*0+1*1+2*2, 3*0+4*1+5*2
    assert float(out["max"]) == 2.0


def test_compiling_again_gives_the_same_executable():
    program = Program(scaled, zeros(3), 1.0)
    assert program.compile("cpu") is program.compile(Target("cpu"))
    assert program.compiles == 1
    program.compile("cpu:2")
    assert program.compiles == 2  # the budget is per target


def test_a_shape_struct_is_enough_as_an_example():
    program = Program(scaled, jax.ShapeDtypeStruct((2,), F32), jax.ShapeDtypeStruct((), F32))
    np.testing.assert_array_equal(program(np.ones(2, F32), 3.0), [3.0, 3.0])


# --- donation ---------------------------------------------------------------------------------------------------------


def test_a_donated_argument_is_given_up_and_the_others_are_kept():
    executable = Program(lambda a, b: (a + b, b.sum()), zeros(1024), zeros(1024), donate=(0,)).compile("cpu:1")
    device = Target("cpu:1").devices()[0]
    a, b = (jax.device_put(np.ones(1024, F32), device) for _ in range(2))
    a, b = (jax.device_put(x, executable.input_shardings[0]) for x in (a, b))
    out, total = executable(a, b)
    assert a.is_deleted()
    assert not b.is_deleted()
    np.testing.assert_array_equal(out, np.full(1024, 2.0))
    assert float(total) == 1024.0
    assert executable.memory.alias == 4096  # bytes of the result that live in the donated argument


# --- layout over a mesh -------------------------------------------------------------------------------------------------


def test_rows_are_split_over_eight_devices_and_parameters_are_on_each():
    program = Program(lambda w, x: x @ w, zeros(3, 2), zeros(16, 3), in_specs=(PartitionSpec(), ROWS), out_specs=ROWS)
    executable = program.compile("cpu:8")
    w = np.arange(6, dtype=F32).reshape(3, 2)
    x = np.arange(48, dtype=F32).reshape(16, 3)
    out = executable(w, x)
    np.testing.assert_array_equal(out, (x.astype("float64") @ w).astype(F32))
    assert {shard.data.shape for shard in out.addressable_shards} == {(2, 2)}
    assert len({shard.device for shard in out.addressable_shards}) == 8
    kernel, rows = executable.input_shardings
    assert kernel.is_fully_replicated
    assert rows.shard_shape((16, 3)) == (2, 3)


@hypothesis.settings(max_examples=10, deadline=None)
@hypothesis.given(st.integers(1, 4), st.integers(1, 5), st.sampled_from([1, 2, 4, 8]))
def test_a_mean_over_rows_is_the_same_on_any_number_of_devices(times, width, devices):
    x = np.random.default_rng(0).normal(size=(8 * times, width)).astype(F32)
    program = Program(lambda x: x.mean(0), x, in_specs=(ROWS,), out_specs=PartitionSpec())
    np.testing.assert_allclose(program.compile(f"cpu:{devices}")(x), x.astype("float64").mean(0), atol=1e-6)


def test_two_mesh_axes():
    spec = PartitionSpec("data", "model")
    program = Program(lambda x: x + 1, zeros(4, 8), axes={"data": 2, "model": -1}, in_specs=(spec,), out_specs=spec)
    out = program.compile("cpu:8")(zeros(4, 8))
    assert {shard.data.shape for shard in out.addressable_shards} == {(2, 2)}
    np.testing.assert_array_equal(out, np.ones((4, 8)))


@pytest.mark.parametrize(("size", "nearest"), [(12, "use 8 or 16"), (6, "use 8"), (17, "use 16 or 24")])
def test_a_size_that_the_devices_do_not_divide_names_argument_size_axis_and_the_nearest(size, nearest):
    program = Program(lambda batch: batch["x"], {"x": zeros(size, 2)}, name="rows", in_specs=(ROWS,))
    with pytest.raises(TargetError) as error:
        program.compile("cpu:8")
    text = str(error.value)
    for part in ("'rows'", "dimension 0 of batch/x", f"size {size}", "axis data of size 8", "cpu:8", nearest):
        assert part in text, text


def test_a_layout_that_does_not_fit_the_array_or_the_mesh_is_refused():
    with pytest.raises(TargetError, match=r"x is laid out over axis 'model'; the mesh has \['data'\]"):
        Program(lambda x: x, zeros(8), in_specs=(PartitionSpec("model"),)).compile("cpu:8")
    with pytest.raises(TargetError, match=r"x has shape \(8,\) and its layout .* names 2 dimensions"):
        Program(lambda x: x, zeros(8), in_specs=(PartitionSpec("data", None),)).compile("cpu:8")


def test_arguments_that_lie_elsewhere_are_named_with_what_to_do():
    executable = Program(scaled, zeros(3), 1.0, name="scale").compile("cpu:1")
    elsewhere = jax.device_put(np.ones(3, F32), jax.devices()[3])
    with pytest.raises(
        TargetError, match=r"'scale': x lie on other devices than cpu:1, .*put them there .* or pass NumPy"
    ):
        executable(elsewhere, 2.0)


# --- the recompile guard -------------------------------------------------------------------------------------------------


def test_beyond_the_budget_the_error_names_the_argument_and_both_shapes():
    executable = Program(scaled, {"image": zeros(2, 3)}["image"], 1.0, name="step").compile("cpu")
    with pytest.raises(RecompileError) as error:
        executable(zeros(4, 3), np.float32(1))
    assert "'step'" in str(error.value)
    assert "budget of 1 is spent" in str(error.value)
    assert "x: was float32[2,3], now float32[4,3]" in str(error.value)
    assert "factor" not in str(error.value)
    assert "Program(budget=…)" in str(error.value)


def test_the_error_names_dtypes_and_weak_types():
    executable = Program(scaled, zeros(2), 1.0).compile("cpu")
    with pytest.raises(RecompileError) as error:
        executable(zeros(2), 2)
    assert "factor: was float32[], now int32[] (weak type)" in str(error.value)
    assert "Python scalars (weak types) among the arguments: factor" in str(error.value)
    with pytest.raises(RecompileError, match=r"x: was float32\[2\], now bfloat16\[2\]"):
        executable(jnp.zeros(2, "bfloat16"), 2.0)


def test_a_leaf_that_is_missing_or_new_is_named():
    executable = Program(lambda batch: batch["x"], {"x": zeros(2), "y": zeros(1)}).compile("cpu")
    with pytest.raises(RecompileError, match=r"batch/y: was float32\[1\], now missing\n  batch/z: new, int32\[3\]"):
        executable({"x": zeros(2), "z": zeros(3, dtype="int32")})


def test_a_budget_of_two_compiles_two_and_keeps_both():
    program = Program(lambda x: x.sum(), zeros(2), budget=2)
    executable = program.compile("cpu")
    assert float(executable(np.ones(3, F32))) == 3.0
    assert float(executable(np.ones(2, F32))) == 2.0
    assert float(program(np.ones(3, F32))) == 3.0
    assert program.compiles == 2
    with pytest.raises(RecompileError, match=r"budget of 2 is spent:\n  x: was float32\[3\], now float32\[4\]"):
        executable(np.ones(4, F32))


@pytest.mark.parametrize("scalar", [2.0, np.float32(2), np.float64(2), jnp.asarray(2.0), np.array(2.0, F32)])
def test_python_scalars_and_weak_arrays_do_not_recompile(scalar):
    program = Program(scaled, zeros(3), 1.0)
    executable = program.compile("cpu:1")
    np.testing.assert_array_equal(executable(np.ones(3, F32), scalar), np.full(3, 2.0))
    np.testing.assert_array_equal(program.compile("cpu:1")(np.ones(3), scalar), np.full(3, 2.0))
    assert program.compiles == 1


def test_results_are_strongly_typed_so_that_they_can_come_back_as_arguments():
    program = Program(lambda count: count + 1, 0)
    executable = program.compile("cpu:1")
    out = executable(5)
    assert not out.weak_type
    for _ in range(3):
        out = executable(out)
    assert int(out) == 9
    assert program.compiles == 1
    constant = Program(lambda x: (x, 3.0), zeros(1)).compile("cpu:1")(zeros(1))[1]
    assert (constant.dtype, constant.weak_type) == (jnp.float32, False)


# --- eager ---------------------------------------------------------------------------------------------------------------


def test_eager_runs_op_by_op_on_concrete_values():
    seen = []

    def fn(x):
        y = x * 2
        seen.append(float(y.sum()))  # a tracer would refuse
        return jax.lax.fori_loop(0, 3, lambda i, y: seen.append(int(i)) or y + 1, y)

    program = Program(fn, zeros(2), eager=True)
    np.testing.assert_array_equal(program(np.ones(2, F32)), [5.0, 5.0])
    assert seen == [4.0, 0, 1, 2]
    assert program.compiles == 0


# --- looking into an executable --------------------------------------------------------------------------------------------


def test_memory_is_counted_in_bytes_per_device():
    program = Program(lambda x: x * 2, zeros(1024, 8), in_specs=(ROWS,), out_specs=ROWS)
    assert program.compile("cpu:1").memory.argument == 1024 * 8 * 4
    on_eight = program.compile("cpu:8").memory
    assert (on_eight.argument, on_eight.output) == (1024 * 4, 1024 * 4)
    assert on_eight.total == on_eight.argument + on_eight.output - on_eight.alias + on_eight.temp + on_eight.code


def test_cost_text_and_binary():
    executable = Program(lambda a, b: a @ b, zeros(16, 32), zeros(32, 8), name="product").compile("cpu:1")
    assert executable.cost["flops"] == 2 * 16 * 32 * 8
    text = executable.lower_text()
    assert "stablehlo.dot_general" in text
    assert "tensor<16x32xf32>" in text
    assert "product" in text.splitlines()[0]  # profiles and dumps show the program's own name
    assert "HloModule" in executable.compiled_text()
    binary = executable.serialize()
    assert isinstance(binary, bytes)
    assert len(binary) > 100
    assert executable.seconds > 0
    assert "product" in repr(executable)


def test_a_described_target_is_not_run():
    with pytest.raises(InputError, match="depth"):
        CompileOptions(depth="deep")
    with pytest.raises(TargetError):
        Target("v5e-8").devices()


# --- the persistent cache ----------------------------------------------------------------------------------------------------

SCRIPT = """
    import numpy as np, systolic as sl
    executable = sl.Program(lambda x: (x * 3 - 1).sum(), np.zeros(7, "float32"), name="cached").compile("cpu")
    print(executable.cache, float(executable(np.ones(7, "float32"))))
"""


def run_script(folder, **environment):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT)],
        env={**os.environ, "SYSTOLIC_CACHE_DIR": str(folder), "JAX_PLATFORMS": "cpu", **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split(), done.stderr


def test_the_first_process_misses_the_cache_and_the_second_hits_it(tmp_path):
    assert run_script(tmp_path)[0] == ["miss", "14.0"]
    assert run_script(tmp_path)[0] == ["hit", "14.0"]


def test_the_cache_can_be_off_and_a_folder_that_cannot_be_written_is_told(tmp_path):
    assert run_script(tmp_path, SYSTOLIC_CACHE="off")[0] == ["off", "14.0"]
    assert not any(tmp_path.iterdir())
    (tmp_path / "file").write_text("")
    said, log = run_script(tmp_path / "file")
    assert said == ["off", "14.0"]
    assert "set SYSTOLIC_CACHE_DIR to a folder you own" in log


@pytest.mark.parametrize("place", ["a file", "a read-only folder"])
def test_a_cache_that_cannot_be_written_is_told_once(tmp_path, monkeypatch, caplog, place):
    monkeypatch.setenv("SYSTOLIC_CACHE_DIR", str(tmp_path / "cache"))
    if place == "a file":
        (tmp_path / "cache").write_text("")
    else:  # a superuser may write anywhere: ask in the place of the system
        (tmp_path / "cache" / "jax").mkdir(parents=True)
        monkeypatch.setattr(os, "access", lambda path, mode: not (mode & os.W_OK))
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    try:
        with caplog.at_level("WARNING", logger="systolic"):
            outcomes = [Program(scaled, zeros(n), 1.0).compile("cpu:1").cache for n in (101, 102, 103)]
        assert jax.config.jax_compilation_cache_dir is None
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
    assert outcomes == ["off"] * 3
    (said,) = [r.getMessage() for r in caplog.records if "compile cache is off" in r.getMessage()]
    assert f"cannot write to {tmp_path / 'cache' / 'jax'}" in said


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.setenv("SYSTOLIC_CACHE_DIR", str(tmp_path / "named"))
    assert cache_dir() == tmp_path / "named"
    monkeypatch.delenv("SYSTOLIC_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "systolic"


# --- arguments that are refused ------------------------------------------------------------------------------------------------


def test_bad_arguments_are_named():
    with pytest.raises(InputError, match=r"Program\(fn\): saw float, wanted a function"):
        Program(3.0)
    with pytest.raises(InputError, match=r"Program\(budget\): saw 0, wanted at least 1"):
        Program(scaled, zeros(1), 1.0, budget=0)
    with pytest.raises(InputError, match=r"Program\(in_specs\): saw 1 specs for 2 arguments"):
        Program(scaled, zeros(1), 1.0, in_specs=(ROWS,))


def test_a_program_set_keeps_names_apart():
    programs = ProgramSet()
    programs.add(Program(scaled, zeros(1), 1.0, name="one"))
    programs.add(Program(scaled, zeros(1), 1.0, name="two"))
    assert list(programs) == ["one", "two"]
    assert len(programs) == 2
    assert "one" in programs
    with pytest.raises(InputError, match="a program named 'one' is there already"):
        programs.add(Program(scaled, zeros(1), 1.0, name="one"))
    with pytest.raises(InputError, match="no program 'three'; there are one, two"):
        programs["three"]


def test_threads_that_want_one_program_wait_for_one_compile():
    traces = []

    def slow(x):
        traces.append(1)
        time.sleep(0.2)
        return x + 1

    program = Program(slow, np.zeros(3, np.float32), name="slow")
    with ThreadPoolExecutor(4) as pool:
        executables = list(pool.map(lambda _: program.compile("cpu:1"), range(4)))
    assert len(traces) == 1
    assert all(executable is executables[0] for executable in executables)


def branches(a):
    if a.sum() > 0:  # the branch
        return a
    return -a


@pytest.mark.parametrize(
    ("fn", "example", "told"),
    [
        (
            branches,
            np.ones(3, np.float32),
            r"program 'branches', at .*test_program\.py:\d+ in branches: if a\.sum\(\) > 0:",
        ),
        (lambda a: a @ a, np.ones((2, 3), np.float32), r"(?s)TypeError: dot_general .*Seen: a float32\[2,3\]"),
    ],
)
@pytest.mark.parametrize("target", ["cpu:1", "v5e-1"])
def test_what_cannot_be_traced_is_told_at_the_users_line(fn, example, told, target):
    with pytest.raises(InputError, match=told):
        Program(fn, example).compile(target)


def test_sizes_that_are_no_sizes_are_refused():
    with pytest.raises(InputError, match=r"argument x: saw the shape \(-1, 3\), wanted static sizes"):
        Program(lambda x: x, jax.ShapeDtypeStruct((-1, 3), np.float32))


def test_an_exception_of_the_users_in_a_program_passes_as_it_is():
    def fails(x):
        raise KeyError("colour")

    with pytest.raises(KeyError, match="colour"):
        Program(fails, np.ones(3, np.float32)).compile("cpu:1")


@pytest.mark.parametrize("target", ["cpu:8", "cpu:1", "v5e-8"])
def test_a_function_may_map_over_shards_of_the_program_s_mesh(target):
    def shard(total, x):
        return total + jax.lax.psum(x.sum(), "data"), x.sum()[None]

    def fn(total, x):
        return jax.shard_map(
            shard, in_specs=(PartitionSpec(), ROWS), out_specs=(PartitionSpec(), ROWS), check_vma=False
        )(total, x)

    x = np.arange(16, dtype=F32)
    program = Program(fn, np.float32(1), x, in_specs=(PartitionSpec(), ROWS))
    compiled = program.compile(target)
    if not Target(target).attached:
        assert "all-reduce" in compiled.hlo_text
        return
    total, parts = compiled(np.float32(1), x)
    assert total == 1 + 120
    np.testing.assert_array_equal(parts, x.reshape(Target(target).num_devices, -1).sum(1))
