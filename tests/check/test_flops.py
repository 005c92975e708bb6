"""Operation counts against formulas worked out by hand."""

from __future__ import annotations

import itertools
import pathlib

import hypothesis
import hypothesis.strategies as st
import pytest

from systolic.check._flops import _valid_taps, count_flops
from systolic.check._hlo import parse

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
