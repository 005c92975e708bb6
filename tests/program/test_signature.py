"""The static signature: paths, shapes, dtypes; what counts as the same and what differs."""

from __future__ import annotations

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np

from systolic.program import Leaf, Signature, leaf_names, signature

SHAPES = st.lists(st.integers(0, 5), max_size=4).map(tuple)
DTYPES = st.sampled_from(["float32", "int32", "bool", "uint8", "bfloat16"])


def test_leaves_are_named_by_argument_and_path_in_flattening_order():
    state = {"params": {"dense": {"kernel": np.zeros((2, 3)), "bias": np.zeros(3)}}, "step": np.int32(0)}
    seen = signature((state, (np.zeros(1), [np.zeros(2)])), ("state", "batch"))
    assert [leaf.path for leaf in seen.leaves] == [
        "state/params/dense/bias",
        "state/params/dense/kernel",
        "state/step",
        "batch/0",
        "batch/1/0",
    ]
    assert [leaf.path for leaf in signature((np.zeros(1), {"a": 1})).leaves] == ["arg0", "arg1/a"]
    assert leaf_names([{"b": 1, "a": 2}], ["x"]) == ["x/a", "x/b"]


def test_wide_types_become_those_jax_computes_in():
    seen = signature((np.zeros(2), np.zeros(2, "int64"), 3, 2.5, True)).leaves
    assert [leaf.dtype for leaf in seen] == ["float32", "int32", "int32", "float32", "bool"]


def test_a_weak_type_is_recorded_and_does_not_make_another_signature():
    scalar, array = signature((2.0,)), signature((np.float32(2),))
    assert scalar.leaves[0].weak
    assert not array.leaves[0].weak
    assert scalar == array
    assert hash(scalar) == hash(array)
    assert signature((jnp.asarray(1.0),)).leaves[0].weak  # JAX keeps the weak type of a Python scalar
    assert str(scalar.leaves[0]) == "float32[] (weak type)"


@hypothesis.given(SHAPES, SHAPES, DTYPES, DTYPES)
def test_signatures_are_equal_exactly_when_shapes_and_dtypes_are(shape, other_shape, dtype, other_dtype):
    one = signature((jax.ShapeDtypeStruct(shape, dtype),))
    two = signature((jax.ShapeDtypeStruct(other_shape, other_dtype),))
    same = shape == other_shape and dtype == other_dtype
    assert (one == two) == same
    assert (hash(one) == hash(two)) or not same
    assert bool(one.difference(two)) != same


def test_difference_tells_what_changed_what_is_missing_and_what_is_new():
    old = signature(({"a": np.zeros((2, 3), "float32"), "b": np.zeros(1, "float32")},), ("batch",))
    new = signature(({"a": np.zeros((4, 3), "int32"), "c": np.zeros(5, "float32")},), ("batch",))
    assert old.difference(new) == [
        "batch/a: was float32[2,3], now int32[4,3]",
        "batch/b: was float32[1], now missing",
        "batch/c: new, float32[5]",
    ]


def test_a_tree_of_another_kind_with_the_same_leaves_differs():
    old, new = signature(((np.zeros(1), np.zeros(2)),)), signature(([np.zeros(1), np.zeros(2)],))
    assert old != new
    assert old.difference(new)[0].startswith("the tree of the arguments: was")


def test_a_signature_compares_with_other_things():
    assert signature((1,)) != "signature"
    assert Signature.of((1.0,), ("x",)).leaves == (Leaf("x", (), "float32", weak=True),)


def test_prng_keys_have_a_signature():
    leaf = signature((jax.random.key(0),)).leaves[0]
    assert (leaf.shape, leaf.dtype) == ((), "key<fry>")
