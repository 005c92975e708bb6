"""A small state travels packed between single steps: the same numbers, and whole whenever somebody looks."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import systolic as sl
from systolic.estimator._packing import HeldState, Packing

TREE = {
    "a": np.array([[1.5, -0.0], [np.inf, 3e-39]], np.float32),
    "n": np.array([np.uint32(0x7FC00123)], np.uint32).view(np.float32),  # a NaN with a payload
    "b": (np.int32(-7), np.array([1, 2**32 - 1], np.uint32)),
    "c": np.array([True, False]),
    "d": np.array(0.5, jnp.bfloat16),
    "e": np.zeros((0, 3), np.float32),
}


def test_packing_keeps_every_bit_shape_and_dtype():
    structs = jax.tree.map(lambda x: jax.ShapeDtypeStruct(np.shape(x), x.dtype), TREE)
    packing = Packing(structs)
    vectors = jax.jit(packing.pack)(TREE)
    assert {name: v.shape for name, v in vectors.items()} == {
        "float32": (5,),
        "int32": (1,),
        "uint32": (2,),
        "bool": (2,),
        "bfloat16": (1,),
    }
    again = jax.jit(packing.unpack)(vectors)
    assert jax.tree.structure(again) == jax.tree.structure(TREE)
    for x, y in zip(jax.tree.leaves(TREE), jax.tree.leaves(again), strict=True):
        assert y.dtype == x.dtype
        assert y.shape == np.shape(x)
        assert np.asarray(y).tobytes() == np.asarray(x).tobytes()


@pytest.mark.parametrize(
    ("shapes", "pays"),
    [
        ([(8, 8)] * 5, True),
        ([(8, 8)] * 2, False),  # two arrays are as good as one
        ([(512, 512)] * 5, False),  # 5 MiB would be copied in and out
    ],
)
def test_packing_is_for_several_small_arrays(shapes, pays):
    assert Packing([jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]).pays is pays


def test_typed_keys_are_not_packed():
    assert not Packing([jax.eval_shape(lambda: jax.random.key(0))] * 5).pays


def test_a_held_state_is_the_one_given_last():
    tree = {"x": jnp.arange(3.0), "y": jnp.int32(4)}
    held, packing = HeldState(), Packing(tree)
    held.tree = tree
    vectors = held.vectors(packing)
    held.give({name: v + 1 for name, v in vectors.items()})
    np.testing.assert_array_equal(held.tree["x"], [1.0, 2.0, 3.0])
    assert int(held.tree["y"]) == 5
    held.vectors(packing)
    held.tree = None  # forgotten, packed or not
    assert held.tree is None


def momentum_by_hand(x, y, steps, batch, rate, decay):
    """(w, b) of a linear regression in float64."""
    now, speed = np.zeros(4), np.zeros(4)
    x = np.column_stack([x, np.ones(len(x))])
    for step in range(steps):
        rows = slice(step * batch % len(x), step * batch % len(x) + batch)
        gradient = 2 * (x[rows] @ now - y[rows]) @ x[rows] / batch
        speed = decay * speed + gradient
        now = now - rate * speed
    return now[:3], now[3]


class Watch(sl.Hook):
    """Looks at the state at each record, in the midst of a run."""

    def __init__(self, estimator):
        self.estimator, self.seen = estimator, []

    def after_steps(self, run, step, metrics):
        params = self.estimator.state["params"]
        self.seen.append((step, np.asarray(params["w"]), float(params["b"])))


def test_a_state_that_is_looked_at_in_the_midst_of_a_packed_run_is_that_of_its_step():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((40, 3)), rng.standard_normal(40)
    model = (lambda key: {"w": jnp.zeros(3), "b": jnp.zeros(())}, lambda params, x: x @ params["w"] + params["b"])
    estimator = sl.Estimator(
        model,
        lambda model, features, labels: sl.EstimatorSpec(loss=(model(features) - labels) ** 2),
        optax.sgd(0.05, momentum=0.5),
        train_batch_size=10,
        config=sl.RunConfig(target="cpu:1", log_every=5, progress=False),
    )
    watch = Watch(estimator)
    source = (x.astype("float32"), y.astype("float32"))
    estimator.train(lambda: source, steps=20, hooks=[watch])
    assert estimator._engine.packs(estimator._engine.spec)
    assert [step for step, *_ in watch.seen] == [5, 10, 15, 20]
    for step, w, b in watch.seen:
        expected = momentum_by_hand(x, y, step, 10, 0.05, 0.5)
        np.testing.assert_allclose(w, expected[0], rtol=2e-5, atol=1e-6)
        np.testing.assert_allclose(b, expected[1], rtol=2e-5, atol=1e-6)
