"""Operation counts against formulas worked out by hand."""

from __future__ import annotations

import itertools
import pathlib

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import pytest

from systolic.check import CheckOptions, check
from systolic.check._flops import _valid_taps, count_flops
from systolic.check._hlo import parse
from systolic.target import libtpu_version

needs_libtpu = pytest.mark.skipif(libtpu_version() is None, reason="needs libtpu")
GOLDEN = pathlib.Path(__file__).parent / "golden"


def counted(name):
    return count_flops(parse((GOLDEN / f"{name}.hlo.txt").read_text()))


def test_a_scan_of_matrix_products_is_2mnk_times_its_length():
    found = counted("scan_matmul")
    assert found.matrix == 5 * 2 * 64 * 256 * 256
    assert found.by_op[0].executions == 5
    assert found.unknown_loops == ()


def test_a_loop_without_a_note_counts_by_its_condition():
    assert counted("counted_loop").matrix == 7 * 2 * 512**3


def test_a_gradient_of_two_layers():
    # Forward 2 products; backward 2 for the weights and 1 for the input of the second layer.
    assert counted("deep_gradient").matrix == 5 * 2 * 32768 * 4096 * 4096


def test_a_strided_convolution_and_its_gradients():
    # SAME, stride 2, kernel 3, size 33: output 17, padding 1 on both sides; taps on real data in one dimension:
    taps = sum(0 <= 2 * out - 1 + tap < 33 for out, tap in itertools.product(range(17), range(3)))
    forward = 2 * 8 * 16 * 32 * taps**2
    # Each gradient does the multiplications of the forward pass once more.
    assert counted("convolution_step").matrix == 3 * forward


def test_elementwise_work_is_counted_apart():
    # Per element: two products, a sum and a difference.
    found = counted("momentum_update")
    assert found.matrix == 0
    assert found.elementwise == pytest.approx(4 * (1024 * 1024 + 1000), rel=0.01)


@hypothesis.given(
    st.integers(1, 9), st.integers(1, 6), st.integers(1, 12), st.integers(1, 4), st.integers(-3, 6), st.integers(1, 4),
    st.integers(1, 3),
)  # fmt: skip
def test_valid_taps_equal_those_counted_one_by_one(size, kernel, out, stride, low, dilate, kernel_dilate):
    count = 0
    for position, tap in itertools.product(range(out), range(kernel)):
        at = position * stride + tap * kernel_dilate - low
        count += 0 <= at <= (size - 1) * dilate and at % dilate == 0
    assert _valid_taps(size, kernel, out, stride, low, dilate, kernel_dilate) == count


def module(body, attributes=""):
    return parse(f"HloModule m{attributes}\n\nENTRY %main (a: f32[4]) -> f32[4] {{\n{body}\n}}\n")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "  ROOT %d = f32[3,5,7]{2,1,0} dot(%a, %b), lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}, "
            "rhs_contracting_dims={1}",
            2 * 3 * 5 * 7 * 11,
        ),
        (
            "  ROOT %d = f32[5,7,3]{2,1,0} convolution(%a, %b), window={size=3 stride=2 pad=0_0 lhs_dilate=3}, "
            "dim_labels=0bf_0io->bf0",
            None,
        ),
    ],
)
def test_dots_with_batch_dimensions(line, expected):
    operands = "  %a = f32[3,5,11]{2,1,0} parameter(0)\n  %b = f32[3,11,7]{2,1,0} parameter(1)\n"
    found = count_flops(module(operands + line)).matrix
    # A batch dimension written as a dilated window touches real data on its diagonal only.
    assert found == (expected or 2 * 3 * 5 * 7 * 11)


def test_grouped_convolutions():
    body = (
        "  %a = f32[2,8,12]{2,1,0} parameter(0)\n  %b = f32[3,4,6]{2,1,0} parameter(1)\n"
        "  ROOT %c = f32[2,6,6]{2,1,0} convolution(%a, %b), window={size=3}, dim_labels=b0f_0io->b0f, feature_group_count=3"
    )
    # 12 features in 3 groups of 4, 6 out; every output position sees 4 × 3 inputs.
    assert count_flops(module(body)).matrix == 2 * 2 * 6 * 6 * 4 * 3


def test_the_heaviest_branch_counts():
    text = """HloModule m

%light (p: f32[8,8]) -> f32[8,8] {
  ROOT %p = f32[8,8]{1,0} parameter(0)
}

%heavy (q: f32[8,8]) -> f32[8,8] {
  %q = f32[8,8]{1,0} parameter(0)
  ROOT %d = f32[8,8]{1,0} dot(%q, %q), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

ENTRY %main (i: s32[], x: f32[8,8]) -> f32[8,8] {
  %i = s32[] parameter(0)
  %x = f32[8,8]{1,0} parameter(1)
  ROOT %c = f32[8,8]{1,0} conditional(%i, %x, %x), branch_computations={%light, %heavy}
}
"""
    assert count_flops(parse(text)).matrix == 2 * 8**3


W = jax.ShapeDtypeStruct((128, 128), jnp.float32)


def loops_of(kind):
    def step(c, w):
        return jnp.tanh(c @ w), c

    return {
        "a reversed scan": lambda c, ws: jax.lax.scan(step, c, ws, reverse=True)[0],
        "a scan unrolled by two": lambda c, ws: jax.lax.scan(step, c, ws, unroll=2)[0],
        "from 2 to 8": lambda c, ws: jax.lax.fori_loop(2, 8, lambda i, c: jnp.tanh(c @ ws[i % 6]), c),
        "down from 12 by 2": lambda c, ws: jax.lax.while_loop(
            lambda s: s[0] > 0, lambda s: (s[0] - 2, jnp.tanh(s[1] @ ws[s[0] // 2 - 1])), (12, c)
        )[1],
        "up to and with 6": lambda c, ws: jax.lax.while_loop(
            lambda s: s[0] <= 6, lambda s: (s[0] + 1, jnp.tanh(s[1] @ ws[s[0] - 1])), (1, c)
        )[1],
        "one in another": lambda c, ws: jax.lax.fori_loop(
            0, 2, lambda i, c: jax.lax.fori_loop(0, 3, lambda j, c: jnp.tanh(c @ ws[i * 3 + j]), c), c
        ),
    }[kind]


KINDS = (
    "a reversed scan",
    "a scan unrolled by two",
    "from 2 to 8",
    "down from 12 by 2",
    "up to and with 6",
    "one in another",
)


@needs_libtpu
@pytest.mark.parametrize("kind", KINDS)
def test_loops_that_count_by_constants_run_six_times(kind):
    stack = jax.ShapeDtypeStruct((6, 128, 128), jnp.float32)
    (found,) = check(loops_of(kind), W, stack, target="v5e-1", options=CheckOptions(depth="schedule")).results
    assert found.flops.matrix == 6 * 2 * 128**3
    assert not found.flops.unknown_loops


@needs_libtpu
def test_the_turns_of_a_scan_count_in_its_gradient_too():
    def loss(c, ws):
        return jax.lax.scan(lambda c, w: (jnp.tanh(c @ w), None), c, ws)[0].sum()

    stack = jax.ShapeDtypeStruct((6, 128, 128), jnp.float32)
    (found,) = check(jax.grad(loss, (0, 1)), W, stack, target="v5e-1", options=CheckOptions(depth="schedule")).results
    assert found.flops.matrix == 3 * 6 * 2 * 128**3  # forward, for the state, for the weights


@needs_libtpu
@pytest.mark.parametrize("grow", [lambda n: n * 2, lambda n: n + jnp.int32(jnp.sum(n) > 3)])
def test_a_loop_whose_counter_does_not_count_is_said_to_be_of_unknown_length(grow):
    def run(n, c):
        return jax.lax.while_loop(lambda s: s[0] < 1_000_000, lambda s: (grow(s[0]), s[1] @ s[1]), (n, c))[1]

    start = jax.ShapeDtypeStruct((), jnp.int32)
    (found,) = check(run, start, W, target="v5e-1", options=CheckOptions(depth="schedule")).results
    assert found.flops.matrix == 2 * 128**3
    assert "of unknown length" in found.notes[0]
