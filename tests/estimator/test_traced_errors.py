"""What goes wrong while a model function is traced is told at the user's own line; the user's exceptions pass."""

from __future__ import annotations

import inspect
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import systolic as sl
from systolic.data import ElementSpec, FeatureSpec
from systolic.estimator._mode import Mode
from systolic.estimator._model_call import call_model_fn

FEATURES, LABELS = {"x": jnp.ones((4, 3))}, jnp.ones(4)
F32 = np.dtype("float32")


def trace(body, features=FEATURES, labels=LABELS, mode=Mode.TRAIN, **extra):
    """What comes of a model function with this body, traced."""

    def model_fn(model, features, labels, mode):
        return sl.EstimatorSpec(loss=body(features, labels))

    jax.eval_shape(lambda f, y: call_model_fn(model_fn, None, f, y, mode, **extra).loss, features, labels)


def branch(x):
    if x.sum() > 0:  # the line that is wanted
        return x
    return -x


class Layer(nnx.Module):
    def __init__(self):
        self.inner = nnx.Linear(5, 1, rngs=nnx.Rngs(0))

    def __call__(self, x):
        return self.inner(x)


CASES = {
    "a branch": (lambda f, y: branch(f["x"])[:, 0], "TracerBoolConversionError", r"bool\[\]", "jnp.where"),
    "a while loop": (
        lambda f, y: [1 for _ in iter(lambda: y[0] > 0, True)],
        "TracerBool",
        r"bool\[\]",
        "lax.while_loop",
    ),
    "float": (lambda f, y: float(y.sum()), "ConcretizationTypeError", r"float32\[\]", "return it in metrics"),
    "item": (lambda f, y: y.sum().item(), "ConcretizationTypeError", r"float32\[\]", "return it in metrics"),
    "NumPy": (lambda f, y: np.exp(y), "TracerArrayConversionError", r"float32\[4\]", "jax.numpy"),
    "a list": (lambda f, y: [y, -y][y.sum().astype(int)], "TracerIntegerConversionError", r"int32\[\]", r"jnp\.stack"),
    "a size": (lambda f, y: jnp.zeros(y.sum().astype(int)), "TypeError", "concrete values of integer type", "print"),
    "a mask": (lambda f, y: y[y > 0], "NonConcreteBooleanIndexError", r"bool\[4\]", "as weights"),
    "a product": (lambda f, y: f["x"] @ jnp.ones((4, 2)), "TypeError", r"\(3,\) and \(4,\)", r"'x': float32\[4,3\]"),
    "a sum": (lambda f, y: f["x"] + y, "ValueError", r"\(4, 3\), \(4,\)", r"labels float32\[4\]"),
    "a layer": (lambda f, y: Layer()(f["x"]), "TypeError", r"\(3,\) and \(5,\)", r"float32\[4,3\]"),
    "too many indices": (lambda f, y: y[0, 0], "IndexError", "1-dimensional", "print"),
    "two branches": (lambda f, y: jax.lax.cond(True, lambda: 1, lambda: 1.0), "TypeError", "equal output types", ""),
    "a format": (lambda f, y: f"{y.sum():.3f}", "TypeError", "format string", ""),
    "assignment": (lambda f, y: y.__setitem__(0, 1.0), "TypeError", "immutable", r"x\.at\[idx\]\.set"),
}


@pytest.mark.parametrize(("body", "kind", "seen", "remedy"), CASES.values(), ids=CASES)
def test_the_first_lines_tell_the_place_what_was_seen_and_the_remedy(body, kind, seen, remedy):
    with pytest.raises(sl.InputError) as caught:
        trace(body)
    place, what, *rest = str(caught.value).split("\n")
    assert re.match(rf"model_fn: model_fn in mode TRAIN, at {re.escape(__file__)}:\d+ in \S+: ", place)
    assert what.startswith(kind)
    assert re.search(seen, what)
    assert re.search(remedy, "\n".join([what, *rest]))
    assert type(caught.value.__cause__).__name__.startswith(kind)


def test_the_line_is_that_of_the_innermost_function_of_the_user():
    with pytest.raises(sl.InputError) as caught:
        trace(CASES["a branch"][0])
    first = inspect.getsourcelines(branch)[1]
    assert f"{pathlib.Path(__file__)}:{first + 1} in branch: if x.sum() > 0:  # the line that is wanted" in str(
        caught.value
    )


def own_error(x):
    raise ValueError(f"mine, about {x}")  # the text of a traced value is in it


class Mine(Exception):
    pass


def raises(error):
    raise error


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (lambda f, y: own_error(y), ValueError),
        (lambda f, y: raises(TypeError(f"of {y}")), TypeError),
        (lambda f, y: raises(Mine("mine")), Mine),
        (lambda f, y: jax.lax.scan(lambda c, v: raises(ValueError("mine")), 0.0, y), ValueError),
        (lambda f, y: int("no number"), ValueError),
        (lambda f, y: [][3], IndexError),
    ],
)
def test_exceptions_of_the_user_pass_as_they_are(body, kind):
    with pytest.raises(kind) as caught:
        trace(body)
    assert type(caught.value) is kind


DATA = ({"x": np.ones((8, 3), "float32")}, np.ones(8, "float32"))


def line_of(model_fn, accumulate=1):
    model = (lambda key: {"w": jnp.zeros((3, 1))}, lambda params, x: x @ params["w"])
    config = sl.RunConfig(progress=False, target="cpu:1")
    return sl.Estimator(model, model_fn, optax.sgd(0.1), train_batch_size=8, accumulate=accumulate, config=config)


def test_training_tells_the_line():
    def model_fn(model, features, labels, mode):
        loss = (model(features["x"])[:, 0] - labels) ** 2
        return sl.EstimatorSpec(loss=loss if loss.mean() > 1 else 2 * loss)

    with pytest.raises(sl.InputError, match=r"in model_fn: return sl\.EstimatorSpec\(loss=loss if loss\.mean\(\) > 1"):
        line_of(model_fn).train(DATA, steps=1)


def loop(x):
    return jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, 1.1 * c[1]), (0, x))[1]  # the loop


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, jax.checkpoint])
def test_a_loop_without_a_bound_in_training_is_told_with_its_line(accumulate, wrap):
    def model_fn(model, features, labels, mode):
        return sl.EstimatorSpec(loss=(wrap(loop)(model(features["x"])[:, 0]) - labels) ** 2)

    with pytest.raises(sl.InputError) as caught:
        line_of(model_fn, accumulate).train(DATA, steps=1)
    number = inspect.getsourcelines(loop)[1] + 1
    assert f"only the device knows at {__file__}:{number}, and" in str(caught.value)
    assert "jax.lax.fori_loop with a bound" in str(caught.value)


def test_a_loop_without_a_bound_that_needs_no_gradient_trains():
    def model_fn(model, features, labels, mode):
        y = model(features["x"])[:, 0]
        return sl.EstimatorSpec(loss=(y - loop(jax.lax.stop_gradient(y))) ** 2)

    estimator = line_of(model_fn)
    estimator.train(DATA, steps=1)
    assert estimator.step == 1


def test_a_feature_of_strings_is_said_to_stay_on_the_host():
    def model_fn(model, features, labels, mode):
        return sl.EstimatorSpec(loss=(model(features["x"])[:, 0] - labels) ** 2, predictions=features["name"])

    model = (lambda key: {"w": jnp.zeros((3, 1))}, lambda params, x: x @ params["w"])
    data = ({"x": np.ones((8, 3), "float32"), "name": np.array(["a"] * 8)}, np.ones(8, "float32"))
    estimator = sl.Estimator(model, model_fn, optax.sgd(0.1), train_batch_size=8, config=sl.RunConfig(progress=False))
    with pytest.raises(
        sl.InputError, match=r"'name', which stays on the host, since strings and objects .*integer ids"
    ):
        estimator.train(data, steps=1)


def test_a_nested_feature_of_strings_is_said_to_stay_on_the_host():
    text = FeatureSpec((), np.dtype(object), None)
    spec = ElementSpec({"user": {"name": text, "age": FeatureSpec((), F32, F32)}}).device
    assert spec.host_only == spec.device.host_only == ("user/name",)
    features = {"user": {"age": jnp.ones(4)}}
    with pytest.raises(sl.InputError, match=r"feature 'name', which stays on the host"):
        trace(lambda f, y: f["user"]["name"], features, host_only=spec.host_only)


def test_a_place_of_strings_in_a_tuple_is_said_to_be_none():
    with pytest.raises(sl.InputError, match=r"met None .*of the tuple of features, 1 stays on the host"):
        trace(lambda f, y: f[1] + 1, (jnp.ones(4), None), host_only=("1",))


def test_a_feature_that_does_not_exist_is_told_with_the_line():
    with pytest.raises(
        sl.InputError, match=r"looked for 'z', and the data has no .* the features are 'x'.*\(at .*f\[\"z\"\]"
    ):
        trace(lambda f, y: f["z"])


def test_labels_among_the_features_are_pointed_at():
    features = {"x": jnp.ones(4), "label": jnp.ones(4)}
    with pytest.raises(
        sl.InputError, match=r"the features hold 'label': input_fn may pass it as \(features, features\.pop"
    ):
        trace(lambda f, y: f["x"] - y, features, None)


def test_a_value_kept_from_an_earlier_trace_is_told_with_its_line():
    kept = []

    def model_fn(model, features, labels, mode):
        loss = (model(features["x"])[:, 0] - labels) ** 2
        if mode is sl.Mode.EVAL:
            loss = loss * kept[-1]  # of the training program
        kept.append(loss)
        return sl.EstimatorSpec(loss=loss)

    model = (lambda key: {"w": jnp.zeros((3, 1))}, lambda params, x: x @ params["w"])
    data = ({"x": np.ones((8, 3), "float32")}, np.ones(8, "float32"))
    estimator = sl.Estimator(model, model_fn, optax.sgd(0.1), train_batch_size=8, config=sl.RunConfig(progress=False))
    estimator.train(data, steps=1)
    with pytest.raises(sl.InputError) as caught:  # newer JAX notices while it traces, older when it is done
        estimator.evaluate(data)
    assert re.search(r"test_traced_errors\.py:\d+", str(caught.value))
    assert re.search("a value of an earlier trace", str(caught.value), re.IGNORECASE)
    assert "float32[8]" in str(caught.value)


def test_a_value_kept_from_an_earlier_trace_is_told_without_tracing_too():
    kept = []
    jax.jit(kept.append)(LABELS)
    with pytest.raises(sl.InputError, match=r"UnexpectedTracerError: .*float32\[4\](.|\n)*as part of predictions"):
        call_model_fn(lambda labels: sl.EstimatorSpec(loss=labels + kept[0]), None, FEATURES, LABELS, Mode.TRAIN)
