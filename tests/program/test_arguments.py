"""What a Program is given: mistakes are named when it is made or called, and no value changes unseen."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from systolic import CompileOptions, InputError, Program, ProgramSet, RecompileError, SystolicError, TargetError
from systolic.program import CompileBudget
from systolic.target import known_targets

F32 = "float32"


def add(x, y):
    return x + y


def echo(dtype, *shape):
    return Program(lambda tree: tree, {"x": np.zeros(shape, dtype)}, name="echo")


# --- values ---------------------------------------------------------------------------------------------------------------

TOO_WIDE = [
    ("int32", np.int64(2**31), "2147483648", "int32", "-2147483648 to 2147483647"),
    ("int32", np.int64(-(2**31) - 1), "-2147483649", "int32", "-2147483648 to 2147483647"),
    ("uint32", np.uint64(2**32), "4294967296", "uint32", "0 to 4294967295"),
    ("int32", 2**40, "1099511627776", "int32", "-2147483648 to 2147483647"),
    ("int32", 2**70, str(2**70), "int32", "-2147483648 to 2147483647"),
    (F32, 1e39, "1e+39", "float32", "-3.4e+38 to 3.4e+38"),
    (F32, np.float64(-1e39), "-1e+39", "float32", "-3.4e+38 to 3.4e+38"),
    ("complex64", 1e39 + 0j, "1e+39", "complex64", "-3.4e+38 to 3.4e+38"),
]


@pytest.mark.parametrize(("dtype", "value", "shown", "wanted", "limits"), TOO_WIDE)
@pytest.mark.parametrize("how", ["program", "executable", "eager"])
def test_a_value_that_its_32_bits_cannot_hold_is_refused(dtype, value, shown, wanted, limits, how):
    program = Program(lambda tree: tree, {"x": np.zeros((), dtype)}, name="echo", eager=how == "eager")
    call = program.compile("cpu:1") if how == "executable" else program
    with pytest.raises(InputError) as error:
        call({"x": value})
    for part in ("'echo'", "tree/x", shown, f"does not fit {wanted}", limits, "JAX_ENABLE_X64=1"):
        assert part in str(error.value)


def test_the_place_of_the_value_in_its_array_is_told():
    values = np.zeros((2, 3), np.int64)
    values[1, 2] = 2**33
    with pytest.raises(InputError, match=r"tree/x: the value 8589934592 at \[1, 2\] does not fit int32"):
        echo("int32", 2, 3)({"x": values})


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("int32", np.int64(2**31 - 1)),
        ("int32", -(2**31)),
        ("uint32", np.uint64(2**32 - 1)),
        (F32, np.float64(np.finfo(F32).max)),
        (F32, np.inf),
        (F32, np.float64("nan")),
        (F32, 1e-300),
        ("bool", True),
        ("int64", np.zeros((), np.int64)),
    ],
)
def test_values_that_fit_pass(dtype, value):
    found = echo(dtype)({"x": value})["x"]
    np.testing.assert_array_equal(found, np.asarray(value).astype(found.dtype))


def test_with_64_bits_enabled_nothing_is_narrowed():
    with jax.enable_x64(True):
        assert int(Program(lambda x: x + 1, np.zeros((), np.int64))(np.int64(2**40))) == 2**40 + 1


def test_arrays_on_a_device_are_not_looked_at(monkeypatch):
    executable = Program(add, np.zeros(2, F32), {"y": np.zeros(2, F32)}["y"]).compile("cpu:1")
    monkeypatch.setattr(type(executable.program.door), "_look", lambda *_: pytest.fail("looked at"))
    x = jax.device_put(jnp.ones(2), executable.input_shardings[0])
    assert executable(x, x).tolist() == [2, 2]


# --- calls ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("args", [(), (np.zeros(2, F32),), (1.0, 2.0, 3.0)])
def test_the_number_of_arguments_of_a_call_is_checked(args):
    program = Program(add, np.zeros(2, F32), np.zeros(2, F32))
    for call in (program, program.compile("cpu:1")):
        with pytest.raises(InputError, match=rf"'add': called with {len(args)} arguments, wanted 2 \(x, y\)"):
            call(*args)


@pytest.mark.parametrize("value", ["text", np.array(["text"]), np.array([None]), object(), np.datetime64("2020-01-01")])
def test_what_is_no_number_is_refused_by_name(value):
    with pytest.raises(InputError, match=r"argument tree/x: saw .*wanted an array of numbers"):
        Program(lambda tree: tree, {"x": value})
    with pytest.raises(InputError, match=r"argument tree/x: saw .*wanted an array of numbers"):
        echo(F32)({"x": value})


# --- a Program's own arguments ----------------------------------------------------------------------------------------------

X = np.zeros((8, 4), F32)

BAD = [
    ({"fn": 3.0}, r"Program\(fn\): saw float, wanted a function"),
    ({"fn": lambda x: x}, r"Program\(example\): 2 example arguments given to a function of \(x\): too many"),
    ({"fn": lambda x, y, z: x}, r"Program\(example\): 2 example arguments .*missing a required argument: 'z'"),
    ({"name": ""}, r"Program\(name\): saw ''"),
    ({"name": 7}, r"Program\(name\): saw 7, wanted a string"),
    ({"donate": 0}, r"Program\(donate\): saw 0, wanted positions of arguments, 0 to 1 \(x, y\), as in donate=\(0,\)"),
    ({"donate": "x"}, r"Program\(donate\): saw 'x'"),
    ({"donate": (9,)}, r"Program\(donate\): saw position 9, wanted positions of arguments, 0 to 1"),
    ({"donate": (-1,)}, r"Program\(donate\): saw position -1"),
    ({"donate": (True,)}, r"Program\(donate\): saw True"),
    ({"donate": (0.0,)}, r"Program\(donate\): saw 0\.0"),
    ({"donate": ("y",)}, r"Program\(donate\): saw 'y' .*'y' is position 1"),
    ({"axes": {}}, r"axes=\{\}: a mapping from axis name to size was wanted"),
    ({"axes": ["data"]}, r"axes=\['data'\]: a mapping"),
    ({"axes": {"data": 0}}, r"axis 'data' has size 0"),
    ({"axes": {3: 1}}, r"an axis name is a non-empty string, not 3"),
    ({"axes": {"a": -1, "b": -1}}, r"'a' and 'b' are all -1"),
    ({"in_specs": P("data")}, r"Program\(in_specs\): saw .*wanted a tuple"),
    ({"in_specs": "data"}, r"Program\(in_specs\): saw 'data', wanted a tuple"),
    ({"in_specs": (P(),)}, r"Program\(in_specs\): saw 1 specs for 2 arguments"),
    ({"in_specs": (P(), "data")}, r"in_specs\[1\], of argument y\): saw 'data' \(str\), wanted a .*PartitionSpec"),
    ({"in_specs": (P(), P(3))}, r"in_specs\[1\], of argument y\): saw 3 in .*names of mesh axes"),
    ({"in_specs": (P("data", "data"), P())}, r"in_specs\[0\], of argument x\): saw axis 'data' twice"),
    ({"in_specs": ({"w": P()}, P())}, r"in_specs\[0\], of argument x\): saw .*no pytree prefix .*the argument itself"),
    ({"out_specs": "data"}, r"Program\(out_specs\): saw 'data'"),
    ({"budget": 0}, r"Program\(budget\): saw 0, wanted at least 1"),
    ({"budget": True}, r"Program\(budget\): saw True"),
    ({"budget": 1.5}, r"Program\(budget\): saw 1\.5"),
]


@pytest.mark.parametrize(("bad", "said"), BAD, ids=[f"{next(iter(b))}-{i}" for i, (b, _) in enumerate(BAD)])
def test_a_mistake_is_named_when_the_program_is_made(bad, said):
    with pytest.raises(SystolicError, match=said):
        Program(*[{"fn": add, **bad}["fn"], X, X], **{k: v for k, v in bad.items() if k != "fn"})


def test_a_spec_that_is_no_prefix_of_a_tree_lists_its_arrays():
    with pytest.raises(InputError, match=r"its arrays are b/0, b/1, w; give one"):
        Program(lambda s: s, {"w": X, "b": [X, X]}, in_specs=({"w": P()},))


@pytest.mark.parametrize("specs", [None, (None, P("data")), ({"w": None, "b": P()}, P("data"))])
def test_none_is_a_replicated_part(specs):
    program = Program(lambda s, x: x @ s["w"], {"w": np.ones((4, 2), F32), "b": np.zeros(2, F32)}, X, in_specs=specs)
    executable = program.compile("cpu:8")
    assert executable.input_shardings[0]["w"].is_fully_replicated
    np.testing.assert_array_equal(
        executable({"w": np.ones((4, 2)), "b": np.zeros(2)}, np.ones((8, 4))), np.full((8, 2), 4)
    )


def test_out_specs_that_are_no_prefix_of_the_result_show_both():
    program = Program(lambda x: {"sum": x.sum(0), "x": x}, X, out_specs={"x": P("data")}, name="two")
    for target in ("cpu:8", "v5e-8"):
        with pytest.raises(InputError, match=r"'two': Program\(out_specs\) .*no pytree prefix of the result, .*'sum'"):
            program.compile(target)


def test_donated_positions_are_kept_once_and_in_order():
    assert Program(add, X, X, donate=[np.int64(1), 0, 1]).donate == (0, 1)


# --- options, targets, sets ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "shown"),
    [
        ({"depth": ["fast"]}, "['fast']"),
        ({"time_limit": "10"}, "'10'"),
        ({"time_limit": float("nan")}, "nan"),
        ({"time_limit": True}, "True"),
        ({"time_limit": None}, "None"),
        ({"memory_limit": "1G"}, "'1G'"),
        ({"memory_limit": True}, "True"),
        ({"cache": "off"}, "'off'"),
        ({"on_progress": 3}, "3"),
    ],
)
def test_options_are_checked(bad, shown):
    with pytest.raises(InputError, match=rf"CompileOptions\({next(iter(bad))}\): saw {re.escape(shown)}, wanted"):
        CompileOptions(**bad)


def test_options_of_another_kind_are_refused():
    with pytest.raises(InputError, match=r"Program\.compile\(options\): saw 'fast' \(str\), wanted a CompileOptions"):
        Program(add, X, X).compile("cpu", "fast")


@pytest.mark.parametrize("generation", ["v99", 5, ["v5e"]])
def test_an_unknown_generation_is_refused(generation):
    with pytest.raises(TargetError, match="the generations are v2"):
        known_targets(generation)


def test_a_set_takes_programs_only_and_can_be_asked():
    programs = ProgramSet()
    with pytest.raises(InputError, match=r"ProgramSet\.add\(program\): saw function, wanted a Program"):
        programs.add(add)
    assert programs.get("train") is None
    assert programs.get("train", 3) == 3


# --- a budget that several Programs share ---------------------------------------------------------------------------------------


def test_a_shared_budget_counts_per_name_and_target():
    budget = CompileBudget(1, setting="RunConfig(compile_budget=…)")

    def predict(batch):
        return batch["image"].sum()

    def program(size, name="predict", dtype=F32):
        return Program(predict, {"image": np.zeros((size, 2), dtype)}, name=name, budget=budget)

    program(4).compile("cpu:1")
    program(4).compile("cpu:2")
    program(8, name="eval").compile("cpu:1")
    with pytest.raises(RecompileError) as error:
        program(8).compile("cpu:1")
    for part in ("'predict'", "batch/image: was float32[4,2], now float32[8,2]", "raise RunConfig(compile_budget=…)"):
        assert part in str(error.value)
    with pytest.raises(RecompileError, match=r"batch/image: was float32\[4,2\], now int32\[4,2\]"):
        program(4, dtype="int32").compile("cpu:1")
    with pytest.raises(RecompileError, match="the arguments are as before; it is another function of the same name"):
        program(4).compile("cpu:1")
    assert (budget.used("predict", "cpu:1"), budget.used("predict", "cpu:2"), budget.used("eval", "cpu:1")) == (1, 1, 1)


def test_a_compile_that_failed_is_not_counted():
    budget = CompileBudget(1)
    with pytest.raises(ZeroDivisionError):
        Program(lambda x: x / (1 // 0), X, name="p", budget=budget).compile("cpu:1")
    assert budget.used("p", "cpu:1") == 0
    Program(lambda x: x, X, name="p", budget=budget).compile("cpu:1")


def test_the_limit_of_a_shared_budget_is_checked_under_the_name_of_its_setting():
    with pytest.raises(InputError, match=r"RunConfig\(compile_budget\): saw 0, wanted at least 1"):
        CompileBudget(0, setting="RunConfig(compile_budget=…)")
