"""One suite that the adapter of every model library passes."""

from __future__ import annotations

import io
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from adapter_cases import CASES, IN, MOMENTUM, OUT, reference, reference_gradient

from systolic.estimator._mode import Mode
from systolic.estimator.adapters import Adapter

X = np.random.default_rng(0).normal(size=(16, IN))
Y = np.random.default_rng(1).normal(size=(16, OUT))
KEY = jax.random.key(5)


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


@pytest.fixture(params=[False, True], ids=["bare", "norm"])
def norm(request):
    return request.param


def wide(tree):
    return {name: np.asarray(leaf, np.float64) for name, leaf in tree.items()}


def run(case, adapter, params, state, mode, key=KEY, x=X):
    @jax.jit
    def program(params, state, key, x):
        bound = adapter.bind(params, state, mode, key)
        return case.call(bound, x, mode, key), adapter.unbind(bound)

    return program(params, state, key, jnp.asarray(x, jnp.float32))


def perturbed(tree, seed=3):
    """Arrays that are nowhere zero or one, so that no term of the oracle drops out."""
    generator = np.random.default_rng(seed)
    return jax.tree.map(
        lambda leaf: (
            leaf + jnp.asarray(generator.uniform(0.1, 0.4, leaf.shape), leaf.dtype)
            if jnp.issubdtype(leaf.dtype, jnp.floating)
            else leaf
        ),
        tree,
    )


def leaf_names(tree):
    return [
        jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in jax.tree_util.tree_leaves_with_path(tree)
    ]


def test_is_an_adapter(case):
    assert isinstance(case.adapter(), Adapter)


@pytest.mark.parametrize("mode", [Mode.TRAIN, Mode.EVAL, Mode.PREDICT])
def test_forward_equals_numpy(case, norm, mode):
    adapter = case.adapter(norm=norm)
    params, state = perturbed(case.init(adapter))
    out, _ = run(case, adapter, params, state, mode)
    statistics = wide(dict(enumerate(case.statistics(state)))) if norm and mode is not Mode.TRAIN else None
    expected, *_ = reference(wide(case.weights(params)), X, statistics and (statistics[0], statistics[1]))
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", [Mode.TRAIN, Mode.EVAL])
def test_gradient_through_bind_equals_the_chain_rule(case, norm, mode):
    adapter = case.adapter(norm=norm)
    params, state = perturbed(case.init(adapter))

    @jax.jit
    @jax.grad
    def gradient(params):
        out = case.call(adapter.bind(params, state, mode, KEY), jnp.asarray(X, jnp.float32), mode, KEY)
        return ((out - jnp.asarray(Y, jnp.float32)) ** 2).sum(-1).mean()

    statistics = tuple(wide(dict(enumerate(case.statistics(state)))).values()) if norm else None
    statistics = None if mode is Mode.TRAIN else statistics
    expected = reference_gradient(wide(case.weights(params)), X, Y, statistics)
    found = case.weights(gradient(params))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


def test_dropout_acts_in_training_only_and_follows_the_key(case, norm):
    adapter = case.adapter(rate=0.5, norm=norm)
    still = case.adapter(rate=0.0, norm=norm)
    params, state = perturbed(case.init(adapter))
    one, _ = run(case, adapter, params, state, Mode.TRAIN, jax.random.key(1))
    same, _ = run(case, adapter, params, state, Mode.TRAIN, jax.random.key(1))
    other, _ = run(case, adapter, params, state, Mode.TRAIN, jax.random.key(2))
    np.testing.assert_array_equal(one, same)
    assert not np.allclose(one, other)
    # Each example must have a mask of its own: equal rows give different outputs.
    rows, _ = run(case, adapter, params, state, Mode.TRAIN, x=np.ones((8, IN)))
    assert len(np.unique(np.asarray(rows), axis=0)) > 1
    for mode in (Mode.EVAL, Mode.PREDICT):
        first, _ = run(case, adapter, params, state, mode, jax.random.key(1))
        second, _ = run(case, adapter, params, state, mode, jax.random.key(2))
        plain, _ = run(case, still, params, state, mode)
        np.testing.assert_array_equal(first, second)
        np.testing.assert_array_equal(first, plain)


def test_dropout_masks_do_not_depend_on_the_kind_of_key(case):
    adapter = case.adapter(rate=0.5, norm=False)
    params, state = case.init(adapter)
    typed = adapter.bind(params, state, Mode.TRAIN, KEY)
    raw = adapter.bind(params, state, Mode.TRAIN, jax.random.key_data(KEY))
    x = jnp.asarray(X, jnp.float32)
    np.testing.assert_array_equal(case.call(typed, x, Mode.TRAIN, KEY), case.call(raw, x, Mode.TRAIN, KEY))


def test_batch_statistics_move_in_training_by_the_formula(case):
    adapter = case.adapter(norm=True)
    params, state = perturbed(case.init(adapter))
    _, new = run(case, adapter, params, state, Mode.TRAIN)
    _, mean, variance, _ = reference(wide(case.weights(params)), X)
    for before, after, batch in zip(case.statistics(state), case.statistics(new), (mean, variance)):
        expected = MOMENTUM * np.asarray(before, np.float64) + (1 - MOMENTUM) * batch
        np.testing.assert_allclose(after, expected, rtol=1e-5)
        assert not np.allclose(before, after)
    assert jax.tree.structure(new) == jax.tree.structure(state)
    assert jax.tree.map(lambda leaf: leaf.dtype, new) == jax.tree.map(lambda leaf: leaf.dtype, state)


@pytest.mark.parametrize("mode", [Mode.EVAL, Mode.PREDICT])
def test_batch_statistics_stay_outside_training(case, mode):
    adapter = case.adapter(norm=True)
    params, state = perturbed(case.init(adapter))
    _, new = run(case, adapter, params, state, mode)
    jax.tree.map(np.testing.assert_array_equal, state, new)


def test_batch_statistics_are_known(case, norm):
    adapter = case.adapter(norm=norm)
    _, state = case.init(adapter)
    assert adapter.has_batch_statistics(state) is norm


def test_init_is_the_same_under_jit_and_abstractly(case, norm):
    adapter = case.adapter(norm=norm)
    outside = case.init(adapter)
    inside = jax.jit(lambda: case.init(case.adapter(norm=norm)))()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), outside, inside)
    shapes = jax.eval_shape(lambda: case.init(case.adapter(norm=norm)))
    assert jax.tree.map(lambda a: (a.shape, a.dtype), outside) == jax.tree.map(lambda a: (a.shape, a.dtype), shapes)
    other, _ = case.init(adapter, seed=1)
    assert not np.allclose(case.weights(other)["w1"], case.weights(outside[0])["w1"])


def test_leaf_names_are_readable_and_unique(case, norm):
    params, state = case.init(case.adapter(norm=norm))
    for tree in (params, state):
        names = leaf_names(tree)
        assert len(set(names)) == len(names)
        assert all(part.replace("_", "").isalnum() for name in names for part in name.split("/"))
    assert {name.split("/")[0] for name in leaf_names(params)} == {"first", "last", *(["norm"] if norm else [])}


def test_state_is_nested_dicts_of_plain_arrays(case, norm):
    def check(node):
        if isinstance(node, dict):
            return [check(child) for child in node.values()]
        assert isinstance(node, jax.Array)
        assert not jnp.issubdtype(node.dtype, jax.dtypes.prng_key)
        return None

    for tree in case.init(case.adapter(rate=0.5, norm=norm)):
        check(tree)


def test_restored_arrays_bind_without_init(case, norm):
    adapter = case.adapter(norm=norm)
    params, state = perturbed(case.init(adapter))
    expected, _ = run(case, adapter, params, state, Mode.EVAL)

    def round_trip(tree):
        leaves, structure = jax.tree.flatten(tree)
        file = io.BytesIO()
        np.savez(file, *[np.asarray(leaf) for leaf in leaves])
        file.seek(0)
        names = json.loads(json.dumps(jax.tree.unflatten(structure, list(range(len(leaves))))))
        with np.load(file) as arrays:
            return jax.tree.map(lambda index: arrays[f"arr_{index}"], names)

    fresh = case.adapter(norm=norm)
    out, _ = run(case, fresh, round_trip(params), round_trip(state), Mode.EVAL)
    np.testing.assert_array_equal(out, expected)


def test_train_steps_carry_through_a_compiled_loop(case):
    """Structure, shapes and dtypes of the state are a fixed point, also in bfloat16 parameters."""
    adapter = case.adapter(rate=0.1, norm=True)
    params, state = case.init(adapter)
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)

    def body(i, state):
        bound = adapter.bind(params, state, Mode.TRAIN, jax.random.fold_in(KEY, i))
        case.call(bound, jnp.asarray(X, jnp.bfloat16), Mode.TRAIN, KEY)
        return adapter.unbind(bound)

    new = jax.jit(lambda state: jax.lax.fori_loop(0, 3, body, state))(state)
    assert not np.allclose(case.statistics(new)[0], case.statistics(state)[0])
