"""What is particular to one model library, and how a model's library is recognised."""

from __future__ import annotations

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

from systolic._errors import InputError
from systolic.estimator import adapters
from systolic.estimator._mode import Mode
from systolic.estimator.adapters import as_adapter

KEY = jax.random.key(0)
X = jnp.arange(6.0).reshape(3, 2)


def nothing(bound):
    del bound


class Scaled(nnx.Module):
    """A bare array attribute, a list of layers, tied weights, and a counter."""

    def __init__(self, *, rngs):
        self.layers = nnx.List([nnx.Linear(2, 2, rngs=rngs) for _ in range(2)])
        self.tied = self.layers[0]
        self.scale = jnp.full(2, 3.0)
        self.calls = nnx.Variable(jnp.zeros((), jnp.int32))

    def __call__(self, x):
        self.calls[...] += 1
        return self.tied(self.layers[1](self.layers[0](x))) * self.scale


@pytest.mark.parametrize("compiled", [False, True])
def test_nnx_lists_tied_weights_bare_arrays_and_counters(compiled):
    adapter = as_adapter(Scaled)
    init = functools.partial(adapter.init, run=nothing)
    params, state = (jax.jit(init) if compiled else init)(KEY)
    assert jax.tree.map(jnp.shape, params) == {"layers": {n: {"bias": (2,), "kernel": (2, 2)} for n in "01"}}
    np.testing.assert_array_equal(state["scale"], [3.0, 3.0])
    bound = adapter.bind(params, state, Mode.TRAIN, KEY)
    kernels = [np.asarray(params["layers"][name]["kernel"], np.float64) for name in "010"]
    np.testing.assert_allclose(bound(X), np.linalg.multi_dot([X, *kernels]) * 3.0, rtol=1e-5)
    assert int(adapter.unbind(bound)["calls"]) == 1


def test_nnx_part_frozen_in_the_model_function_stays():
    class Net(nnx.Module):
        def __init__(self, *, rngs):
            self.a = nnx.BatchNorm(2, rngs=rngs)
            self.b = nnx.BatchNorm(2, rngs=rngs)

    adapter = as_adapter(Net)
    params, state = adapter.init(KEY, nothing)
    bound = adapter.bind(params, state, Mode.TRAIN, KEY)
    bound.a.eval()
    bound.b(bound.a(X))
    new = adapter.unbind(bound)
    np.testing.assert_array_equal(new["a"]["mean"], 0.0)
    assert np.any(np.asarray(new["b"]["mean"]) != 0)


def test_nnx_partitioned_parameters_need_no_mesh():
    kernel = nnx.with_partitioning(nnx.initializers.lecun_normal(), (None, "model"))
    adapter = as_adapter(lambda rngs: nnx.Linear(2, 2, kernel_init=kernel, rngs=rngs))
    params, state = jax.jit(functools.partial(adapter.init, run=nothing))(KEY)
    np.testing.assert_allclose(adapter.bind(params, state, Mode.EVAL)(X), X @ params["kernel"], rtol=1e-5)


def test_nnx_layers_stacked_by_vmap_have_streams_of_their_own():
    class Stack(nnx.Module):
        def __init__(self, *, rngs):
            @nnx.split_rngs(splits=3)
            @nnx.vmap
            def make(rngs):
                return nnx.Dropout(0.5, rngs=rngs)

            self.dropouts = make(rngs)

    adapter = as_adapter(Stack)
    params, state = adapter.init(KEY, nothing)
    assert not jax.tree.leaves((params, state))
    model = adapter.bind(params, state, Mode.TRAIN, KEY)
    out = nnx.vmap(lambda dropout, x: dropout(x), in_axes=(0, None))(model.dropouts, jnp.ones(64))
    assert len(np.unique(np.asarray(out), axis=0)) == 3


def test_nnx_variable_made_late_is_refused():
    adapter = as_adapter(lambda rngs: nnx.Linear(2, 2, rngs=rngs))
    bound = adapter.bind(*adapter.init(KEY, nothing), Mode.TRAIN, KEY)
    bound.late = nnx.Variable(jnp.zeros(1))
    with pytest.raises(InputError, match=r"created the variable late.*constructor"):
        adapter.unbind(bound)


def test_nnx_function_of_something_else_is_refused():
    with pytest.raises(InputError, match=r"returned int, wanted an nnx\.Module"):
        as_adapter(lambda rngs: 3).init(KEY, nothing)


def test_leaves_of_another_model_are_listed():
    adapter = as_adapter(lambda rngs: nnx.Linear(2, 2, rngs=rngs))
    params, state = adapter.init(KEY, nothing)
    with pytest.raises(InputError, match=r"missing: bias; not in the model: offset"):
        adapter.bind({"kernel": params["kernel"], "offset": params["bias"]}, state, Mode.EVAL)


class Coder(linen.Module):
    """Two methods, each with variables of its own, and something sown."""

    def setup(self):
        self.down = linen.Dense(1)
        self.up = linen.Dense(2)

    def encode(self, x):
        code = self.down(x)
        self.sow("intermediates", "code", code)
        return code

    def decode(self, x):
        return self.up(x)


def test_linen_methods_make_their_variables_and_sown_values_are_not_state():
    adapter = as_adapter(Coder())
    params, state = adapter.init(KEY, lambda model: model.decode(model.encode(X)))
    assert set(params) == {"down", "up"}
    assert state == {}
    model = adapter.bind(params, state, Mode.TRAIN, KEY)
    out, sown = model.encode(X, mutable=["intermediates"])
    np.testing.assert_array_equal(sown["intermediates"]["code"][0], out)
    assert adapter.unbind(model) == {}


class Noise(linen.Module):
    stream: str

    @linen.compact
    def __call__(self, x):
        return x + jax.random.normal(self.make_rng(self.stream), x.shape)


def test_linen_stream_in_evaluation_must_be_named():
    forgotten, named = as_adapter(Noise("dropout")), adapters.linen(Noise("sample"), rngs=["sample"])
    forgotten.bind({}, {}, Mode.TRAIN, KEY)(X)
    with pytest.raises(InputError, match=r'mode EVAL.*"dropout".*deterministic'):
        forgotten.bind({}, {}, Mode.EVAL, KEY)(X)
    model = named.bind({}, {}, Mode.EVAL, KEY)
    first, second = model(X), model(X)
    assert not np.allclose(first, second)
    np.testing.assert_array_equal(named.bind({}, {}, Mode.EVAL, KEY)(X), first)


def test_linen_model_that_is_not_called_is_refused():
    with pytest.raises(InputError, match="did not call `model`"):
        as_adapter(linen.Dense(2)).init(KEY, nothing)


def test_linen_partitioned_parameters_are_plain():
    layer = linen.Dense(2, kernel_init=linen.with_partitioning(linen.initializers.lecun_normal(), (None, "model")))
    adapter = as_adapter(layer)
    params, state = adapter.init(KEY, lambda model: model(X))
    assert params["kernel"].shape == (2, 2)
    np.testing.assert_allclose(adapter.bind(params, state, Mode.EVAL)(X), X @ params["kernel"], rtol=1e-5)


def test_equinox_stateless_is_mapped_as_always():
    adapter = as_adapter(lambda key: eqx.nn.MLP(2, 3, 5, 1, key=key))
    params, state = adapter.init(KEY, nothing)
    assert params["layers"]["0"]["weight"].shape == (5, 2)
    model = adapter.bind(params, state, Mode.TRAIN, KEY)
    np.testing.assert_allclose(jax.vmap(model)(X), model.batched(X), rtol=1e-6)
    assert adapter.unbind(model) == {}


def test_equinox_stateful_is_not_mapped_by_hand():
    adapter = as_adapter(lambda key: eqx.nn.make_with_state(eqx.nn.BatchNorm)(2, "batch", mode="batch"))
    model = adapter.bind(*adapter.init(KEY, nothing), Mode.TRAIN, KEY)
    with pytest.raises(InputError, match=r"model\.batched\(x\)"):
        jax.vmap(model)(X)


def test_equinox_state_left_behind_is_refused():
    with pytest.raises(InputError, match="make_with_state"):
        as_adapter(lambda key: eqx.nn.BatchNorm(2, "batch", mode="batch")).init(KEY, nothing)


def test_equinox_spectral_norm_is_state_but_not_a_batch_statistic():
    def build(key):
        layer = eqx.nn.Linear(2, 2, key=key)
        return eqx.nn.make_with_state(eqx.nn.SpectralNorm)(layer, "weight", key=key)

    adapter = as_adapter(build)
    params, state = adapter.init(KEY, nothing)
    assert jax.tree.leaves(state)
    assert not adapter.has_batch_statistics(state)
    model = adapter.bind(params, state, Mode.TRAIN, KEY)
    model.batched(X)
    adapter.unbind(model)


def test_plain_state_of_another_shape_is_refused():
    adapter = adapters.plain(lambda key: ({}, {"n": jnp.zeros(1)}), lambda p, s, x: (x, {"n": x}), stateful=True)
    model = adapter.bind(*adapter.init(KEY, nothing), Mode.TRAIN, KEY)
    with pytest.raises(InputError, match=r"shape of state\['n'\]: was \(1,\), became \(3, 2\)"):
        model(X)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda key: {"n": jnp.zeros(1, jnp.int32)}, "params/n: got dtype int32, wanted floating point"),
        (lambda key: {"n": 1.0}, "params/n: got float, wanted an array"),
        (lambda key: {"n": key}, "params/n: got a PRNG key"),
    ],
)
def test_plain_params_that_cannot_be_trained_are_refused(made, message):
    with pytest.raises(InputError, match=message):
        as_adapter((made, lambda params, x: x)).init(KEY, nothing)


def test_plain_batch_statistics_can_be_denied():
    state = {"n": jnp.zeros(1)}
    assert adapters.plain(nothing, nothing, stateful=True).has_batch_statistics(state)
    assert not adapters.plain(nothing, nothing, stateful=True, batch_statistics=False).has_batch_statistics(state)


class Keyed(eqx.Module):
    weight: jax.Array

    def __init__(self, size, *, key):
        self.weight = jax.random.normal(key, (size,))


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        (lambda rngs: nnx.Linear(2, 2, rngs=rngs), adapters.nnx),
        (Scaled, adapters.nnx),
        (functools.partial(nnx.Linear, 2, 2), adapters.nnx),
        (linen.Dense(2), adapters.linen),
        (lambda key: Keyed(2, key=key), adapters.equinox),
        (functools.partial(Keyed, 2), adapters.equinox),
        ((lambda key: {}, lambda params, x: x), adapters.plain),
        (adapters.plain(lambda key: {}, lambda params, x: x), adapters.plain),
    ],
)
def test_library_is_recognised(model, kind):
    assert isinstance(as_adapter(model), kind)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nnx.Linear(2, 2, rngs=nnx.Rngs(0)), r"instance of Linear.*lambda rngs: Linear\("),
        (Keyed(2, key=KEY), r"instance of Keyed.*lambda key: Keyed\("),
        (lambda x: x, r"callable of \(x\).*wanted one of"),
        ((1, 2), "tuple of 2"),
        (3, "got int"),
    ],
)
def test_model_of_no_known_library_is_refused(model, message):
    with pytest.raises(InputError, match=message):
        as_adapter(model)
