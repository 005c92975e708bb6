"""Convolutions on the CPU, in their faster forms: the same numbers, where they apply, and nowhere else."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from systolic import Program
from systolic.program._rewrite import Rewriter

NHWC = ("NHWC", "HWIO", "NHWC")
RNG = np.random.default_rng(0)


def normal(*shape, dtype="float32"):
    return jnp.asarray(RNG.standard_normal(shape, "float32"), dtype)


def convolve(pads=((1, 1), (1, 1)), dims=NHWC, **options):
    strides = options.pop("strides", (1, 1))
    return lambda x, w: lax.conv_general_dilated(x, w, strides, pads, dimension_numbers=dims, **options)


def in_float64(x, w, dy, pads):
    """Result and both gradients of a convolution, from its definition."""
    x, w, dy = (np.asarray(a, np.float64) for a in (x, w, dy))
    (top, bottom), (left, right) = pads
    padded = np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)))
    rows, columns = dy.shape[1:3]
    y, dx, dw = np.zeros(dy.shape), np.zeros(padded.shape), np.zeros(w.shape)
    for i in range(w.shape[0]):
        for j in range(w.shape[1]):
            piece = padded[:, i : i + rows, j : j + columns]
            y += piece @ w[i, j]
            dx[:, i : i + rows, j : j + columns] += dy @ w[i, j].T
            dw[i, j] = np.einsum("nhwc,nhwk->ck", piece, dy)
    height, width = x.shape[1:3]
    return y, dx[:, top : top + height, left : left + width], dw


def with_gradients(f):
    def run(x, w, dy):
        y, back = jax.vjp(f, x, w)
        return y, *back(dy)

    return run


def faster_forms(f, *args):
    """How many convolutions of a program take another form on one CPU device."""
    text = Program(f, *args, name="p").compile("cpu:1").lower_text()
    plain = jax.jit(f).lower(*args).as_text()
    return plain.count("stablehlo.convolution") - text.count("stablehlo.convolution")


@pytest.mark.parametrize(
    ("shape", "window", "out", "pads", "changed"),
    [
        ((64, 32, 32, 64), (3, 3), 64, ((1, 1), (1, 1)), 1),  # the weights' gradient
        ((257, 16, 16, 32), (3, 3), 40, ((1, 1), (1, 1)), 1),  # a number of images that nothing divides
        ((40, 32, 32, 64), (2, 3), 64, ((0, 2), (1, 0)), 1),
        ((96, 40, 36, 64), (5, 3), 64, ((0, 2), (1, 0)), 1),
        ((8, 14, 14, 16), (1, 1), 32, ((0, 0), (0, 0)), 3),  # a product, and so are both gradients
        ((4, 8, 8, 4), (3, 3), 4, ((1, 1), (1, 1)), 0),
        ((4, 8, 8, 4), (1, 1), 4, ((1, 1), (0, 0)), 0),
    ],
)
def test_results_and_gradients_are_those_of_the_definition(shape, window, out, pads, changed):
    f = convolve(pads)
    x, w = normal(*shape), normal(*window, shape[3], out)
    dy = normal(*jax.eval_shape(f, x, w).shape)
    run = with_gradients(f)
    assert faster_forms(run, x, w, dy) == changed
    got = Program(run, x, w, dy, name="p").compile("cpu:1")(x, w, dy)
    for mine, wanted in zip(got, in_float64(x, w, dy, pads), strict=True):
        np.testing.assert_allclose(mine, wanted, atol=2e-5 * np.abs(wanted).max())


def test_in_bfloat16_the_gradient_is_summed_in_float32():
    f = convolve()
    x, w, dy = (normal(*s, dtype="bfloat16") for s in ((128, 32, 32, 64), (3, 3, 64, 64), (128, 32, 32, 64)))
    run = with_gradients(f)
    got = Program(run, x, w, dy, name="p").compile("cpu:1")(x, w, dy)[2]
    assert got.dtype == jnp.bfloat16
    wanted = in_float64(x, w, dy, ((1, 1), (1, 1)))[2]
    np.testing.assert_allclose(np.asarray(got, "float32"), wanted, atol=2**-8 * np.abs(wanted).max())


@pytest.mark.parametrize(
    ("f", "weights"),
    [
        (convolve(strides=(2, 2)), (3, 3, 64, 64)),
        (convolve(rhs_dilation=(2, 2)), (3, 3, 64, 64)),
        (convolve(feature_group_count=2), (3, 3, 32, 64)),
        (convolve(dims=("NCHW", "HWIO", "NCHW")), (3, 3, 32, 64)),
        (convolve(((2, 2), (2, 2))), (5, 5, 64, 64)),  # a wide window pays on larger maps only
        (convolve(((4, 4), (4, 4))), (9, 9, 64, 8)),
    ],
)
def test_other_convolutions_stay_as_they_are(f, weights):
    x, w = normal(64, 32, 32, 64), normal(*weights)
    assert faster_forms(with_gradients(f), x, w, normal(*jax.eval_shape(f, x, w).shape)) == 0


def test_several_devices_and_other_platforms_keep_the_plain_convolution():
    x, w, dy = normal(64, 32, 32, 64), normal(3, 3, 64, 64), normal(64, 32, 32, 64)
    run = with_gradients(convolve())
    assert Program(run, x, w, dy, name="p").compile("cpu:2").lower_text().count("stablehlo.convolution") == 3
    exported = jax.export.export(jax.jit(run), platforms=["tpu"])(x, w, dy)
    assert exported.mlir_module().count("stablehlo.convolution") == 3


def test_a_batch_over_eight_devices_has_the_same_result_and_gradients():
    x, w, dy = normal(64, 32, 32, 64), normal(3, 3, 64, 8), normal(64, 32, 32, 8)
    specs = (P("data"), P(), P("data"))
    program = Program(with_gradients(convolve()), x, w, dy, name="p", in_specs=specs, out_specs=P())
    executable = program.compile("cpu:8")
    got = executable(*jax.device_put((x, w, dy), executable.input_shardings))
    for mine, wanted in zip(got, in_float64(x, w, dy, ((1, 1), (1, 1))), strict=True):
        np.testing.assert_allclose(mine, wanted, atol=2e-5 * np.abs(wanted).max())


def test_a_convolution_inside_other_functions_is_found():
    f = convolve(((0, 0), (0, 0)))
    x, w = normal(4, 8, 8, 4), normal(1, 1, 4, 4)

    def nested(x, w):
        y = jax.checkpoint(jax.jit(f))(x, w)
        return lax.cond(y.sum() > 0, lambda y: f(y, w), lambda y: y, y)

    assert faster_forms(nested, x, w) == 2
    got = Program(nested, x, w, name="p").compile("cpu:1")(x, w)
    np.testing.assert_allclose(got, nested(x, w), rtol=1e-5, atol=1e-5)


def test_a_program_without_anything_to_change_comes_back_itself():
    jaxpr = jax.make_jaxpr(lambda x: jnp.sin(x) @ x)(jnp.ones((3, 3)))
    rewriter = Rewriter(lambda equation: None)
    assert rewriter.apply(jaxpr) is jaxpr
    assert rewriter.changed == 0
