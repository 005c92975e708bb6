"""FAQ 14. Is there a lower level?

Yes: a :class:`systolic.Program` is a pure function with a static signature. It says where its arguments lie, what it may
overwrite, and how often it may be compiled; several of them share one state by passing it on, and switching between them
costs a call, not a compile.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import systolic as sl

ROWS = P("data")
X = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
Y = X @ np.array([1, -2, 3, 0.5], "float32")


def step(state, x, y):
    """One step of gradient descent on the mean squared error of a linear model; rate 0.1."""
    loss, slope = jax.value_and_grad(lambda w: ((x @ w - y) ** 2).mean())(state["w"])
    return {"w": state["w"] - 0.1 * slope, "steps": state["steps"] + 1}, loss


def fresh():
    return {"w": np.zeros(4, "float32"), "steps": np.int32(0)}


def by_hand(steps):
    """The same in NumPy float64: the gradient of a mean square is 2/n Xᵀ(Xw - y)."""
    x, y, w = X.astype("float64"), Y.astype("float64"), np.zeros(4)
    for _ in range(steps):
        w = w - 0.1 * 2 / len(x) * x.T @ (x @ w - y)
    return w


def a_program(**options):
    layout = {"in_specs": (P(), ROWS, ROWS), "out_specs": (P(), P()), "donate": (0,)}
    return sl.Program(step, fresh(), X, Y, name="step", **(layout | options))


def test_a_function_becomes_a_program_that_computes_the_same():
    run = a_program().compile("cpu:1")
    state = fresh()
    for _ in range(5):
        state, loss = run(state, X, Y)
    np.testing.assert_allclose(state["w"], by_hand(5), rtol=1e-5, atol=1e-6)
    assert int(state["steps"]) == 5
    np.testing.assert_allclose(loss, ((X @ by_hand(4) - Y) ** 2).mean(), rtol=1e-4)


def test_rows_over_eight_devices_give_the_same_and_each_device_has_its_share():
    run = a_program().compile("cpu:8")
    _, rows, _ = run.input_shardings
    x, y = jax.device_put(X, rows), jax.device_put(Y, run.input_shardings[2])
    assert {shard.data.shape for shard in x.addressable_shards} == {(4, 4)}  # 32 rows over 8 devices
    state = fresh()
    for _ in range(5):
        state, _ = run(state, x, y)
    np.testing.assert_allclose(state["w"], by_hand(5), rtol=1e-5, atol=1e-6)
    assert len(state["w"].sharding.device_set) == 8
    assert state["w"].is_fully_replicated


def test_programs_share_a_state_and_switching_between_them_compiles_nothing():
    """Train, and shrink the weights by half at every third step: two graphs over one state, on eight devices."""

    def shrink(state):
        return {"w": state["w"] / 2, "steps": state["steps"]}

    programs = sl.ProgramSet()
    programs.add(a_program())
    programs.add(sl.Program(shrink, fresh(), name="shrink", in_specs=(P(),), out_specs=P(), donate=(0,)))
    programs.add(sl.Program(lambda state, x: x @ state["w"], fresh(), X, name="predict", in_specs=(P(), ROWS)))
    run = {name: program.compile("cpu:8") for name, program in programs.items()}
    x, y, w = X.astype("float64"), Y.astype("float64"), np.zeros(4)
    state = jax.device_put(fresh(), run["shrink"].input_shardings[0])
    compiled = []

    def hear(event, *_, **__):
        if "compile" in event:
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(hear)
    try:
        for i in range(30):
            state, _ = run["step"](state, X, Y)
            w = w - 0.1 * 2 / len(x) * x.T @ (x @ w - y)
            if i % 3 == 2:
                state = run["shrink"](state)
                w = w / 2
            out = run["predict"](state, X)
        assert not compiled
        jax.jit(lambda x: x * 3.25 + 1)(1.5)
        assert compiled  # a compile would have been heard
    finally:
        jax.monitoring.unregister_event_duration_listener(hear)
    assert [program.compiles for program in programs.values()] == [1, 1, 1]
    np.testing.assert_allclose(state["w"], w, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(out, x @ w, rtol=1e-4, atol=1e-5)


def test_a_new_shape_is_an_error_that_names_it_and_not_a_silent_compile():
    run = a_program().compile("cpu:1")
    with pytest.raises(sl.RecompileError, match=r"'step'.*budget of 1 is spent") as error:
        run(fresh(), X[:8], Y[:8])
    assert "x: was float32[32,4], now float32[8,4]" in str(error.value)
    assert "y: was float32[32], now float32[8]" in str(error.value)


def test_more_shapes_are_allowed_by_number_and_each_is_compiled_once():
    program = a_program(budget=2)
    run = program.compile("cpu:1")
    for rows in (32, 8, 32, 8):
        state, _ = run(fresh(), X[:rows], Y[:rows])
        assert int(state["steps"]) == 1
    assert program.compiles == 2
    with pytest.raises(sl.RecompileError, match="budget of 2 is spent"):
        run(fresh(), X[:16], Y[:16])


def test_what_was_donated_is_given_up_and_need_not_be_copied():
    run = a_program().compile("cpu:1")
    state = jax.tree.map(lambda x, s: jax.device_put(jnp.asarray(x), s), fresh(), run.input_shardings[0])
    run(state, X, Y)
    assert state["w"].is_deleted()
    assert run.memory.alias >= 16  # bytes: four float32 weights are written where the old ones were
