"""Large arrays that a program closes over are told, with their names where these can be known."""

from __future__ import annotations

import functools
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from systolic import CompileOptions, Program
from systolic.target import libtpu_version

F32 = "float32"
X = np.zeros(1024, F32)


def table(mib: int, **kwargs) -> np.ndarray:
    return np.ones((mib, 256, 1024), F32, **kwargs)  # MiB of 2**18 float32


LOOKUP = table(65)


def notices(caplog, fn, *example):
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="systolic"):
        Program(fn, *(example or (X,)), name="p").lower("cpu:1")
    return [record.getMessage() for record in caplog.records]


def test_names_shape_type_size_place_and_what_to_do(caplog):
    weights = {"embedding": table(65)}
    (said,) = notices(caplog, lambda x: x + jnp.asarray(weights["embedding"]).sum((0, 1)))
    for part in (
        "program 'p': 65.0 MiB of arrays are closed over",
        "weights/embedding: float32[65,256,1024] of 65.0 MiB, used at ",
        "test_constants.py:",
        "pass them as arguments",
    ):
        assert part in said


def test_what_is_not_large_or_is_an_argument_is_not_told(caplog):
    small = table(64)
    assert notices(caplog, lambda x: x + jnp.asarray(small).sum((0, 1))) == []
    assert notices(caplog, lambda x, t: x + t.sum((0, 1)), X, table(65)) == []


def test_many_together_are_told_largest_first(caplog):
    parts = [table(mib) for mib in (5, 30, 10, 11, 12, 13)]
    (said,) = notices(caplog, lambda x: sum((jnp.asarray(p).sum((0, 1)) for p in parts), x))
    assert "81.0 MiB" in said
    assert said.index("parts/1: ") < said.index("parts/5: ") < said.index("parts/4: ")
    assert "parts/0" not in said
    assert " and 1 smaller; pass" in said


class Model:
    def __init__(self):
        self.kernel = jnp.asarray(table(65))

    def apply(self, x):
        return x + self.kernel.sum((0, 1))


def with_global(x):
    def inner(x):
        return x + jnp.asarray(LOOKUP).sum((0, 1))

    return inner(x)


def with_keyword(x, *, scale):
    return x + scale.sum((0, 1))


def nested():
    hidden = jnp.asarray(table(65))

    def inner(x):
        return x + hidden.sum((0, 1))

    return lambda x: inner(x)


@pytest.mark.parametrize(
    ("fn", "name"),
    [
        (Model().apply, "self.kernel: "),
        (with_global, "LOOKUP: "),
        (functools.partial(with_keyword, scale=jnp.asarray(table(65))), "scale: "),
        (nested(), "hidden: "),
        (jax.jit(nested()), "hidden: "),
    ],
    ids=["attribute", "global", "partial", "nested function", "jitted"],
)
def test_the_name_is_found(caplog, fn, name):
    (said,) = notices(caplog, fn)
    assert f"of the program: {name}float32[65,256,1024]" in said


def test_a_constant_made_inside_has_a_place_and_no_name(caplog):
    (said,) = notices(caplog, lambda x: x + jnp.asarray(table(65)).sum((0, 1)))
    assert "of the program: float32[65,256,1024] of 65.0 MiB, used at " in said


@pytest.mark.skipif(libtpu_version() is None, reason="needs libtpu")
def test_a_description_has_the_notice_among_its_notes():
    found = Program(with_global, X).compile("v5e-1", CompileOptions(depth="schedule", cache=False))
    (note,) = found.notes
    assert "LOOKUP: float32[65,256,1024]" in note
