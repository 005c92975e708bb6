"""What a model function may ask for and return, and how its loss is reduced."""

from __future__ import annotations

import functools
from typing import ClassVar

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from systolic._errors import InputError
from systolic.estimator import _metrics as metrics
from systolic.estimator._mode import Mode
from systolic.estimator._model_call import call_model_fn
from systolic.estimator._spec import EstimatorSpec, finalizers, metric_sums, reduce_loss

FEATURES, LABELS = {"x": jnp.ones((4, 3))}, jnp.zeros(4)
PER_EXAMPLE = jnp.arange(4.0)


def call(model_fn, mode=Mode.TRAIN, **extra):
    return call_model_fn(model_fn, "model", FEATURES, LABELS, mode, **extra)


def returning(**spec):
    return lambda model, features, labels, mode: EstimatorSpec(**spec)


def test_only_named_parameters_are_passed():
    seen = {}

    def full(model, features, labels, mode, params, key):
        seen.update(model=model, mode=mode, params=params, key=key)
        return EstimatorSpec(loss=PER_EXAMPLE)

    def short(features, model, /, *, mode):
        seen.update(model=model, features=features, mode=mode)
        return EstimatorSpec(loss=PER_EXAMPLE)

    def keywords(features, **rest):
        seen.update(rest)
        return EstimatorSpec(loss=PER_EXAMPLE)

    def extra(model, features, width=3, **kwargs):
        seen.update(width=width, **kwargs)
        return EstimatorSpec(loss=PER_EXAMPLE)

    call(full, params={"width": 2}, rngs="key")
    assert seen == {"model": "model", "mode": Mode.TRAIN, "params": {"width": 2}, "key": "key"}
    seen.clear()
    call(short, Mode.EVAL)
    assert seen == {"model": "model", "features": FEATURES, "mode": Mode.EVAL}
    seen.clear()
    call(keywords)
    assert set(seen) == {"model", "labels", "mode", "params", "key"}
    seen.clear()
    call(functools.partial(extra, width=7))
    assert seen["width"] == 7


def test_unknown_parameter_is_named():
    def model_fn(model, features, targets, mode):
        return EstimatorSpec(loss=PER_EXAMPLE)

    with pytest.raises(InputError, match=r"model_fn asks for a parameter 'targets'.*features, labels"):
        call(model_fn)


@pytest.mark.parametrize(
    ("model_fn", "mode", "message"),
    [
        (lambda model: PER_EXAMPLE, Mode.TRAIN, r"returned \w*Array\w*, wanted an EstimatorSpec"),
        (lambda model: None, Mode.TRAIN, "returned NoneType, wanted an EstimatorSpec"),
        (returning(predictions=PER_EXAMPLE), Mode.TRAIN, "no loss in mode TRAIN"),
        (returning(predictions=PER_EXAMPLE), Mode.EVAL, "no loss in mode EVAL"),
        (returning(loss=PER_EXAMPLE), Mode.PREDICT, "no predictions in mode PREDICT"),
        (returning(loss=jnp.ones(3)), Mode.TRAIN, r"loss=.*\(3,\), wanted its first dimension to be 4"),
        (returning(loss=jnp.ones(4, int)), Mode.TRAIN, r"loss=.*dtype int32.*floating-point"),
        (returning(loss=PER_EXAMPLE, weights=jnp.ones(3)), Mode.TRAIN, r"weights=.*\(3,\).*\(4,\)"),
        (returning(loss=PER_EXAMPLE, metrics={"m": jnp.ones(2)}), Mode.EVAL, r"metrics={'m': .*\(2,\)"),
        (returning(loss=PER_EXAMPLE, metrics={"m": metrics.Sum(jnp.ones(2))}), Mode.EVAL, r"'m'.*\(2,\)"),
        (returning(loss=PER_EXAMPLE, metrics=[PER_EXAMPLE]), Mode.EVAL, "got list, wanted a dict"),
        (returning(loss=PER_EXAMPLE, metrics={"loss": PER_EXAMPLE}), Mode.EVAL, "'loss' is taken"),
        (returning(loss=PER_EXAMPLE, metrics={3: PER_EXAMPLE}), Mode.EVAL, r"the name 3 \(int\) seen, wanted a string"),
        (returning(loss={1: PER_EXAMPLE}), Mode.EVAL, r"loss=...\): the name 1 \(int\) seen"),
        (returning(loss=PER_EXAMPLE, metrics={"m": np.array(list("abcd"))}), Mode.EVAL, r"'m': ...}\): got <U1"),
        (returning(loss=np.array(list("abcd"))), Mode.EVAL, r"loss=...\): got <U1, wanted an array of numbers"),
        (returning(loss=PER_EXAMPLE, weights=np.array(list("abcd"))), Mode.EVAL, r"weights=...\): got <U1"),
        (
            returning(loss=PER_EXAMPLE, metrics={"m": metrics.Metric()}),
            Mode.EVAL,
            r"'m': ...}\): Metric sets no values",
        ),
        (returning(predictions={"p": jnp.ones((3, 2))}), Mode.PREDICT, r"\['p'\].*\(3, 2\)"),
        (returning(predictions={"p": jnp.ones(())}), Mode.PREDICT, r"\['p'\].*\(\)"),
        (returning(predictions={"p": "text"}), Mode.PREDICT, r"\['p'\]: got str"),
    ],
)
def test_wrong_results_are_explained(model_fn, mode, message):
    with pytest.raises(InputError, match=message):
        call(model_fn, mode)


def test_checks_work_while_tracing():
    def program(x):
        return call_model_fn(returning(loss=x), None, x, None, Mode.TRAIN).loss

    assert jax.eval_shape(program, jax.ShapeDtypeStruct((5,), jnp.float32)).shape == (5,)


@hypothesis.settings(deadline=None, max_examples=30)
@hypothesis.given(
    mask=st.none() | st.lists(st.booleans(), min_size=1, max_size=9),
    tokens=st.integers(0, 3),
    weighted=st.sampled_from(["no", "rows", "entries"]),
    seed=st.integers(0, 2**16),
)
def test_reduced_loss_and_its_gradient_equal_numpy(mask, tokens, weighted, seed):
    generator = np.random.default_rng(seed)
    rows = 6 if mask is None else len(mask)
    shape = (rows, tokens) if tokens else (rows,)
    loss = generator.normal(size=shape).astype(np.float32)
    weights = {"no": None, "rows": generator.random(rows), "entries": generator.random(shape)}[weighted]
    real = np.ones(rows, bool) if mask is None else np.array(mask)
    full = (
        np.ones(shape)
        if weights is None
        else np.broadcast_to(weights.reshape(weights.shape + (1,) * (loss.ndim - weights.ndim)), shape)
    )
    full = np.asarray(full, np.float32).astype(np.float64)
    dirty = np.where(real.reshape(-1, *[1] * (loss.ndim - 1)), loss, np.nan)

    def objective(loss):
        spec = EstimatorSpec(loss=loss, weights=None if weights is None else jnp.asarray(weights, jnp.float32))
        total, weight = reduce_loss(spec, None if mask is None else jnp.asarray(mask))
        return total, weight

    (found, weight), gradient = jax.value_and_grad(objective, has_aux=True)(jnp.asarray(dirty, jnp.float32))
    np.testing.assert_allclose(weight, full[real].sum(), rtol=1e-5)
    np.testing.assert_allclose(found, (loss.astype(np.float64) * full)[real].sum(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(gradient, np.where(real.reshape(-1, *[1] * (loss.ndim - 1)), full, 0), rtol=1e-6)


def test_scalar_loss_is_taken_as_it_is_where_nothing_is_padding():
    spec = call(returning(loss=jnp.float32(2.5)))
    assert reduce_loss(spec, None) == (2.5, 1.0)


@pytest.mark.parametrize(
    ("spec", "what"),
    [
        (EstimatorSpec(loss=jnp.float32(1)), "the loss is a scalar"),
        (EstimatorSpec(loss=PER_EXAMPLE, metrics={"norm": jnp.float32(1)}), "the metric 'norm' is a scalar"),
    ],
)
def test_scalar_with_padding_is_explained(spec, what):
    with pytest.raises(InputError, match=rf"{what}.*one value per example.*\.mean\(\)"):
        metric_sums(spec, jnp.array([True, True, False, False]))


def test_low_precision_loss_is_summed_in_float32():
    total, weight = reduce_loss(EstimatorSpec(loss=jnp.ones(1000, jnp.bfloat16)), None)
    assert total.dtype == weight.dtype == jnp.float32
    assert total == 1000


def test_several_losses_are_reduced_by_name():
    spec = call(returning(loss={"a": PER_EXAMPLE, "b": 2 * PER_EXAMPLE}, weights={"b": jnp.array([0.0, 0, 0, 1])}))
    assert reduce_loss(spec, None, "a") == (6.0, 4.0)
    assert reduce_loss(spec, None, "b") == (6.0, 1.0)
    assert set(metric_sums(spec, None)) == {"loss/a", "loss/b"} == set(finalizers(spec))
    with pytest.raises(InputError, match=r"\['a', 'b'\]; wanted one named 'c'"):
        reduce_loss(spec, None, "c")


def test_plain_metrics_take_the_weights_and_metric_objects_bring_their_own():
    tokens = jnp.arange(8.0).reshape(4, 2)
    weights = jnp.array([[1.0, 0], [1, 1], [0, 0], [1, 0]])
    spec = EstimatorSpec(loss=tokens, weights=weights, metrics={"a": tokens > 2, "b": metrics.Mean(tokens > 2)})
    sums, finish = metric_sums(spec, jnp.array([True, True, True, False])), finalizers(spec)
    values = {name: finish[name].finalize(totals) for name, totals in sums.items()}
    assert values == pytest.approx({"loss": 5 / 3, "a": 1 / 3, "b": 3 / 6})


def test_plain_metric_that_the_weights_do_not_fit_is_explained():
    spec = EstimatorSpec(loss=jnp.ones((4, 2)), weights=jnp.ones((4, 2)), metrics={"m": jnp.ones(4)})
    with pytest.raises(InputError, match=r"'m'.*\(4,\).*\(4, 2\) do not fit.*Mean\(values, weights"):
        metric_sums(spec, None)


def test_finalizers_outlive_the_trace():
    kept = {}

    @jax.jit
    def program(x):
        spec = EstimatorSpec(loss=x, metrics={"top": metrics.Max(x)})
        kept.update(finalizers(spec))
        return metric_sums(spec, None)

    with jax.checking_leaks():
        sums = program(PER_EXAMPLE)
    assert kept["top"].reductions == {"extreme": "max"}
    assert kept["top"].finalize(sums["top"]) == 3.0
    assert kept["loss"].finalize(sums["loss"]) == 1.5


@pytest.mark.parametrize("labels_shape", [(4, 1), (4,)])
def test_predictions_and_labels_that_broadcast_to_pairs_are_refused(labels_shape):
    def model_fn(model, features, labels, mode):
        predictions = features["x"][:, 0] if len(labels_shape) == 2 else features["x"][:, :1]
        return EstimatorSpec(loss=(predictions - labels) ** 2)

    with pytest.raises(InputError, match=r"loss has shape \(4, 4\), one value for each pair"):
        call_model_fn(model_fn, None, {"x": jnp.ones((4, 3))}, jnp.ones(labels_shape), Mode.TRAIN)


def test_a_loss_per_token_may_have_as_many_tokens_as_examples():
    def model_fn(model, features, labels, mode):
        return EstimatorSpec(loss=(features["x"] - labels) ** 2)

    tokens = jnp.ones((4, 4))
    assert call_model_fn(model_fn, None, {"x": tokens}, tokens, Mode.TRAIN).loss.shape == (4, 4)


@pytest.mark.parametrize("argument", ["metrics", "loss"])
@pytest.mark.parametrize(
    ("name", "better"),
    [
        ("", "accuracy"),
        ("top 5", "top_5"),
        ("precision@10", "precision_10"),
        ("a\nb", "a_b"),
        ("/a", "a"),
        ("a//b/", "a/b"),
        (" ", "accuracy"),
        ("c:\\x", "c_x"),
    ],
)
def test_names_that_would_not_stay_as_they_are_get_a_better_one(argument, name, better):
    spec = {"loss": PER_EXAMPLE} | {argument: {name: PER_EXAMPLE}}
    with pytest.raises(InputError, match=rf"{argument}=...\): the name .* seen, wanted letters.* as in '{better}':"):
        call(returning(**spec), Mode.EVAL)


@pytest.mark.parametrize("name", ["accuracy", "top-5", "été", "a/b.c", "Loss", "loss_2", "step/x", "0"])
def test_names_of_letters_digits_and_parts_are_taken(name):
    assert name in finalizers(call(returning(loss=PER_EXAMPLE, metrics={name: PER_EXAMPLE}), Mode.EVAL))


@pytest.mark.parametrize("name", ["loss", "loss/x", "step", "learning_rate", "steps_per_second", "input_wait"])
def test_names_that_a_run_reports_itself_are_refused(name):
    with pytest.raises(InputError, match=rf"metrics=...\): the name '{name}' is taken.*[Cc]hoose another"):
        call(returning(loss=PER_EXAMPLE, metrics={name: PER_EXAMPLE}), Mode.EVAL)


def test_a_metric_of_ones_own_with_an_unknown_reduction_is_refused():
    class Odd(metrics.Mean):
        reductions: ClassVar = {"sum": "average"}

    with pytest.raises(InputError, match=r"Odd\.reductions has 'average' for 'sum', wanted one of 'sum', 'max', 'min'"):
        call(returning(loss=PER_EXAMPLE, metrics={"m": Odd(PER_EXAMPLE)}), Mode.EVAL)


def test_a_negative_weight_makes_the_loss_nan_and_weights_of_zero_count_nothing():
    negative = EstimatorSpec(loss=PER_EXAMPLE, weights=jnp.array([1.0, -1.0, 1.0, 1.0]))
    assert all(np.isnan(part) for part in reduce_loss(negative, None))
    padded = reduce_loss(negative, jnp.array([True, False, True, True]))
    assert padded == (5.0, 3.0)
    assert reduce_loss(EstimatorSpec(loss=PER_EXAMPLE, weights=jnp.zeros(4)), None) == (0.0, 0.0)
