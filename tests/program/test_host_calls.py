"""Programs with host callbacks compile for described targets."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback
from jax.sharding import PartitionSpec as P

from systolic._errors import CompileError
from systolic.program import Program
from systolic.target import libtpu_version

pytestmark = pytest.mark.skipif(libtpu_version() is None, reason="needs libtpu")

ROWS = jax.ShapeDtypeStruct((16, 128), np.float32)


def on_host(x):
    return np.asarray(x) * 2


def simulate(x):
    return jax.pure_callback(on_host, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def transfers(text):
    return sum(f" {word}(" in line for line in text.splitlines() for word in ("send", "recv"))


def test_a_callback_in_a_loop_becomes_its_transfers():
    def program(x):
        def body(carry, _):
            carry = simulate(carry)
            jax.debug.print("sum {}", carry.sum())
            return carry, None

        return jax.lax.scan(body, x, None, length=5)[0]

    found = Program(program, ROWS, in_specs=(P("data"),)).compile("v5e-8")
    assert any("pure_callback(on_host)" in note for note in found.notes)
    assert any("debug" in note for note in found.notes)
    assert transfers(found.hlo_text) == 3  # there and back, and the printed sum


def test_a_callback_in_a_gradient_and_under_shard_map():
    @jax.custom_vjp
    def outside(x):
        return simulate(x)

    outside.defvjp(lambda x: (outside(x), None), lambda _, g: (2 * g,))

    def program(x):
        mesh = jax.sharding.AbstractMesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
        y = jax.grad(lambda x: (outside(x) ** 2).sum())(x)
        return jax.shard_map(simulate, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(y)

    found = Program(program, ROWS, in_specs=(P("data"),)).compile("v5e-8")
    assert transfers(found.hlo_text) >= 4


def test_an_ordered_callback_compiles_for_one_device_and_is_explained_for_more():
    def program(x):
        io_callback(lambda value: None, None, x.sum(), ordered=True)
        return x + 1

    assert Program(program, ROWS).compile("v5e-1").notes
    with pytest.raises(CompileError, match=r"ordered host callback io_callback .*8 devices.*ordered=False"):
        Program(program, ROWS).compile("v5e-8")


def test_the_function_itself_is_not_changed():
    function = jax.jit(lambda x: simulate(jnp.sin(x)))
    before = str(jax.make_jaxpr(function)(np.ones(ROWS.shape, np.float32)))
    Program(function, ROWS).compile("v5e-1")
    assert str(jax.make_jaxpr(function)(np.ones(ROWS.shape, np.float32))) == before
    np.testing.assert_allclose(function(np.ones((2, 2), np.float32)), 2 * np.sin(np.ones((2, 2))), rtol=1e-6)
