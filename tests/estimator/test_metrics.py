"""Metrics over batches of any size equal NumPy and scikit-learn over the real examples."""

from __future__ import annotations

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sklearn.metrics

from systolic._errors import InputError
from systolic.estimator import _metrics as metrics
from systolic.estimator._nonfinite import first_nonfinite

REDUCE = {"sum": np.add, "max": np.maximum, "min": np.minimum}


def total(make, columns, batch_size, garbage=np.nan):
    """The metric over rows of ``columns``, in padded batches whose padding is garbage."""
    rows = len(columns[0])
    totals, kind = {}, None
    for start in range(0, rows, batch_size):
        parts = [column[start : start + batch_size] for column in columns]
        missing = batch_size - len(parts[0])
        padded = [
            np.concatenate(
                [part, np.full((missing, *part.shape[1:]), garbage if part.dtype.kind == "f" else 1, part.dtype)]
            )
            for part in parts
        ]
        metric = make(*map(jnp.asarray, padded))
        kind = type(metric)
        for name, value in metric.sums(jnp.arange(batch_size) < len(parts[0])).items():
            value = np.asarray(value, np.float64)
            combine = REDUCE[kind.reductions.get(name, "sum")]
            totals[name] = combine(totals[name], value) if name in totals else value
    return kind.finalize(totals)


GENERATOR = np.random.default_rng(0)
VALUES = GENERATOR.normal(size=37).astype(np.float32)
WEIGHTS = GENERATOR.uniform(0.5, 2, size=37).astype(np.float32)
GUESS, LABEL = GENERATOR.random(37) > 0.4, GENERATOR.random(37) > 0.5
SCORES = GENERATOR.random(37).astype(np.float32)

NUMBERS = {
    "mean": (metrics.Mean, VALUES.mean(dtype=np.float64)),
    "sum": (metrics.Sum, VALUES.sum(dtype=np.float64)),
    "rmse": (lambda v: metrics.RootMean(v**2), np.sqrt((VALUES.astype(np.float64) ** 2).mean())),
    "perplexity": (metrics.Perplexity, np.exp(VALUES.mean(dtype=np.float64))),
    "max": (metrics.Max, VALUES.max()),
    "min": (metrics.Min, VALUES.min()),
}


@pytest.mark.parametrize("batch_size", [1, 8, 37, 50])
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_equal_numpy_for_every_batch_size(name, batch_size):
    make, expected = NUMBERS[name]
    assert total(make, [VALUES], batch_size) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("batch_size", [8, 50])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    ("kind", "oracle"),
    [
        (metrics.Precision, sklearn.metrics.precision_score),
        (metrics.Recall, sklearn.metrics.recall_score),
        (metrics.F1, sklearn.metrics.f1_score),
    ],
)
def test_decisions_equal_scikit_learn(kind, oracle, weighted, batch_size):
    columns = [GUESS, LABEL, *([WEIGHTS] if weighted else [])]
    expected = oracle(LABEL, GUESS, sample_weight=WEIGHTS if weighted else None)
    assert total(kind, columns, batch_size) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("weighted", [False, True])
def test_auc_equals_scikit_learn_where_scores_fall_on_bins(weighted):
    scores = (np.floor(SCORES * 16) / 16).astype(np.float32)
    columns = [scores, LABEL, *([WEIGHTS] if weighted else [])]
    expected = sklearn.metrics.roc_auc_score(LABEL, scores, sample_weight=WEIGHTS if weighted else None)
    assert total(metrics.AUC, columns, 8) == pytest.approx(expected, rel=1e-6)


def test_auc_error_is_at_most_half_the_pairs_that_share_a_bin():
    generator = np.random.default_rng(4)
    labels = generator.random(2000) > 0.7
    scores = np.clip(generator.normal(0.4 + 0.2 * labels, 0.2), 0, 1).astype(np.float32)
    bins = np.minimum((scores * 32).astype(int), 31)
    positive, negative = (np.bincount(bins[labels == side], minlength=32) for side in (True, False))
    bound = 0.5 * (positive * negative).sum() / (positive.sum() * negative.sum())
    found = total(lambda s, y: metrics.AUC(s, y, bins=32), [scores, labels], 256)
    exact = sklearn.metrics.roc_auc_score(labels, scores)
    assert 0 < abs(found - exact) <= bound
    assert abs(total(metrics.AUC, [scores, labels], 256) - exact) < 1e-3


def test_weighted_mean_equals_numpy():
    expected = np.average(VALUES.astype(np.float64), weights=WEIGHTS.astype(np.float64))
    assert total(metrics.Mean, [VALUES, WEIGHTS], 8) == pytest.approx(expected, rel=1e-6)


def test_token_mean_leaves_out_tokens_of_weight_zero_even_if_nan():
    values = GENERATOR.normal(size=(6, 5)).astype(np.float32)
    weights = (np.arange(5)[None] < np.array([5, 3, 1, 0, 2, 4])[:, None]).astype(np.float32)
    dirty = np.where(weights == 0, np.nan, values).astype(np.float32)
    expected = values[weights == 1].mean(dtype=np.float64)
    assert total(metrics.Mean, [dirty, weights], 4) == pytest.approx(expected, rel=1e-6)


def test_weights_of_a_prefix_shape_count_every_entry_of_the_row():
    values = GENERATOR.normal(size=(6, 5)).astype(np.float32)
    weights = GENERATOR.uniform(1, 2, size=6).astype(np.float32)
    expected = np.average(values.astype(np.float64), weights=np.repeat(weights[:, None].astype(np.float64), 5, 1))
    assert total(metrics.Mean, [values, weights], 4) == pytest.approx(expected, rel=1e-6)


@hypothesis.settings(deadline=None, max_examples=30)
@hypothesis.given(
    mask=st.lists(st.booleans(), min_size=1, max_size=12),
    tokens=st.integers(0, 3),
    seed=st.integers(0, 2**16),
)
def test_garbage_behind_any_mask_changes_nothing(mask, tokens, seed):
    generator = np.random.default_rng(seed)
    mask = np.array(mask)
    shape = (len(mask), tokens) if tokens else (len(mask),)
    values, weights = generator.random(shape).astype(np.float32), generator.random(shape).astype(np.float32)
    labels = generator.random(shape) > 0.5

    def made(values, weights, labels):
        values, weights, labels = jnp.asarray(values), jnp.asarray(weights), jnp.asarray(labels)
        return [
            metrics.Mean(values, weights),
            metrics.Sum(values),
            metrics.F1(values > 0.5, labels, weights),
            metrics.AUC(values, labels, weights, bins=8),
            metrics.Max(values),
            metrics.Min(values),
        ]

    hidden = np.broadcast_to(~mask.reshape(-1, *[1] * (values.ndim - 1)), shape)
    clean = made(values, weights, labels)
    dirty = made(np.where(hidden, np.nan, values), np.where(hidden, np.inf, weights), labels ^ hidden)
    for one, other in zip(clean, dirty):
        expected, found = one.sums(jnp.asarray(mask)), other.sums(jnp.asarray(mask))
        jax.tree.map(np.testing.assert_array_equal, expected, found)
    mean = metrics.Mean.finalize(clean[0].sums(jnp.asarray(mask)))
    if mask.any():
        oracle = np.average(values[mask].astype(np.float64), weights=weights[mask].astype(np.float64))
        assert mean == pytest.approx(oracle, rel=1e-5)
    else:
        assert np.isnan(mean)


@pytest.mark.parametrize("make", [metrics.Mean, metrics.Max, metrics.Min, lambda v: metrics.AUC(v, LABEL)])
def test_nan_of_a_real_example_shows(make):
    values = np.where(np.arange(37) == 5, np.nan, VALUES).astype(np.float32)
    assert np.isnan(type(make(values)).finalize(make(values).sums(None)))


def test_no_example_gives_nan_or_the_empty_sum():
    none = jnp.zeros(37, bool)
    for make in (metrics.Mean, metrics.RootMean, metrics.Perplexity, metrics.Max, metrics.Min):
        assert np.isnan(make.finalize(make(VALUES).sums(none)))
    assert metrics.Sum.finalize(metrics.Sum(VALUES).sums(none)) == 0
    assert metrics.F1.finalize(metrics.F1(GUESS, LABEL).sums(none)) == 0
    assert np.isnan(metrics.AUC.finalize(metrics.AUC(SCORES, LABEL).sums(none)))


def test_low_precision_values_are_summed_in_float32():
    values = jnp.ones(1000, jnp.bfloat16)
    assert metrics.Mean(values).sums(None)["sum"] == 1000


def test_perplexity_out_of_range_is_infinite():
    assert metrics.Perplexity.finalize({"sum": np.float64(1000), "weight": np.float64(1)}) == np.inf


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: metrics.Mean(np.ones((4, 2)), np.ones(2)), r"weights.*\(2,\).*\(4, 2\)"),
        (lambda: metrics.F1(np.ones(4), np.ones(4, bool)), r"F1\(predictions.*float.*Threshold"),
        (lambda: metrics.Recall(np.ones(4, bool), np.ones(3, bool)), r"Recall: got shape \(4,\)"),
        (lambda: metrics.AUC(np.ones(4), np.ones(4, bool), bins=1), "got 1, wanted a whole number of at least 2"),
        (lambda: metrics.AUC(np.ones(4), np.ones(4, bool), bins=4.5), "got 4.5, wanted a whole number"),
        (lambda: metrics.AUC(np.ones(4), np.ones(4)), r"AUC\(labels.*float.*Threshold"),
        (lambda: metrics.Precision(np.ones(4, bool), None), r"Precision\(labels=...\): got NoneType"),
        (lambda: metrics.Precision(np.ones(4, bool), np.array(list("abcd"))), r"Precision\(labels.*got <U1"),
        (lambda: metrics.Recall(np.ones(4, bool), np.ones(4, complex)), r"Recall\(labels.*complex"),
        (lambda: metrics.Mean(np.array(list("abcd"))), r"Mean\(values=...\): got <U1, wanted an array of numbers"),
        (lambda: metrics.Max(np.ones(4, complex)), r"Max\(values.*complex64.*jnp\.abs"),
        (lambda: metrics.Mean(np.ones(4), np.array(list("abcd"))), r"Mean\(weights=...\): got <U1"),
        (lambda: metrics.Mean(jax.random.split(jax.random.key(0), 4)), r"Mean\(values.*key<"),
        (lambda: metrics.Mean(1.0).sums(np.ones(4, bool)), "scalar"),
    ],
)
def test_bad_arguments_are_named(make, message):
    with pytest.raises(InputError, match=message):
        make()


# --- what only values tell ---------------------------------------------------------------------------------------------

KINDS = {
    "mean": lambda weights: metrics.Mean(VALUES, weights),
    "sum": lambda weights: metrics.Sum(VALUES, weights),
    "root mean": lambda weights: metrics.RootMean(VALUES**2, weights),
    "perplexity": lambda weights: metrics.Perplexity(VALUES, weights),
    "precision": lambda weights: metrics.Precision(GUESS, LABEL, weights),
    "recall": lambda weights: metrics.Recall(GUESS, LABEL, weights),
    "f1": lambda weights: metrics.F1(GUESS, LABEL, weights),
    "auc": lambda weights: metrics.AUC(SCORES, LABEL, weights),
}


def value(metric, mask=None):
    return type(metric).finalize({name: np.asarray(x, np.float64) for name, x in metric.sums(mask).items()})


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("bad", [-1.0, -1e-30, np.nan])
def test_a_weight_that_is_negative_or_nan_shows_as_nan_unless_it_is_padding(make, bad):
    weights = np.where(np.arange(37) == 5, bad, WEIGHTS).astype(np.float32)
    assert np.isnan(value(make(weights)))
    assert np.isfinite(value(make(weights), np.arange(37) != 5))


@pytest.mark.parametrize("name", KINDS)
def test_weights_that_are_all_zero_count_nothing(name):
    expected = 0.0 if name in ("sum", "precision", "recall", "f1") else np.nan
    np.testing.assert_equal(value(KINDS[name](np.zeros(37))), expected)


@pytest.mark.parametrize("name", ["precision", "recall", "f1"])
def test_nothing_to_count_is_zero_as_in_scikit_learn(name):
    kind, oracle = {
        "precision": (metrics.Precision, sklearn.metrics.precision_score),
        "recall": (metrics.Recall, sklearn.metrics.recall_score),
        "f1": (metrics.F1, sklearn.metrics.f1_score),
    }[name]
    none = np.zeros(37, bool)
    assert value(kind(none, none)) == oracle(none, none, zero_division=0.0) == 0.0


def test_weights_of_zero_and_infinity():
    expected = np.average([1.0, 3.0], weights=[1.0, 2.0])
    assert value(metrics.Mean(np.array([1.0, np.inf, 3.0]), np.array([1.0, 0.0, 2.0]))) == pytest.approx(expected)
    assert np.isnan(value(metrics.Mean(np.ones(2), np.array([1.0, np.inf]))))


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int32, np.float16])
def test_weights_of_any_real_dtype(dtype):
    weights = (np.arange(37) % 3).astype(dtype)
    expected = np.average(VALUES.astype(np.float64), weights=weights.astype(np.float64))
    assert value(metrics.Mean(VALUES, weights)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind", [metrics.Precision, metrics.Recall, metrics.F1])
@pytest.mark.parametrize("where", ["predictions", "labels"])
def test_integers_other_than_zero_and_one_show_as_nan_unless_they_do_not_count(kind, where):
    columns = {"predictions": GUESS.astype(np.int32), "labels": LABEL.astype(np.int32)}
    clean = value(kind(**columns))
    assert clean == value(kind(GUESS, LABEL))
    columns[where] = np.where(np.arange(37) == 5, 2, columns[where])
    assert np.isnan(value(kind(**columns)))
    assert np.isfinite(value(kind(**columns), np.arange(37) != 5))
    assert np.isfinite(value(kind(**columns, weights=np.arange(37) != 5)))


@pytest.mark.parametrize("score", [-0.1, 1.1, 3.0, np.inf, np.nan])
def test_auc_of_what_is_no_probability_is_nan_unless_it_does_not_count(score):
    scores = np.where(np.arange(37) == 5, score, SCORES).astype(np.float32)
    assert np.isnan(value(metrics.AUC(scores, LABEL)))
    others = np.arange(37) != 5
    expected = sklearn.metrics.roc_auc_score(LABEL[others], SCORES[others])
    assert value(metrics.AUC(scores, LABEL, bins=1 << 14), others) == pytest.approx(expected, abs=1e-3)


def test_auc_takes_rounding_beyond_one_and_labels_of_zero_and_one():
    scores = np.array([0.0, -1e-7, 1.0, 1.000001], np.float32)
    assert value(metrics.AUC(scores, np.array([0, 0, 1, 1]))) == 1.0
    assert np.isnan(value(metrics.AUC(scores, np.array([0, 0, 1, 2]))))


def test_auc_of_one_class_is_nan():
    assert np.isnan(value(metrics.AUC(SCORES, np.ones(37, bool))))
    assert np.isnan(value(metrics.AUC(SCORES, np.zeros(37, bool))))


def test_the_root_of_a_negative_mean_is_nan():
    assert np.isnan(value(metrics.RootMean(-np.ones(3))))


def test_what_made_a_result_nan_is_the_first_nan_in_the_program_and_has_a_name():
    def program(weights, scores, labels):
        parts = [metrics.Mean(scores, weights), metrics.AUC(scores, labels), metrics.F1(scores > 0.5, labels)]
        return [part.sums(None) for part in parts]

    weights, scores, labels = (jnp.asarray(x) for x in (WEIGHTS, SCORES, LABEL.astype(np.int32)))
    names = ("weights", "scores", "labels")
    assert first_nonfinite(program, weights, scores, labels, names=names) is None
    for bad, name in [
        ((weights.at[5].set(-1), scores, labels), "negative_weight"),
        ((weights, scores.at[5].set(3), labels), "not_a_probability"),
        ((weights, scores, labels.at[5].set(3)), "not_0_or_1"),
    ]:
        assert f"NaN first comes out of {name}/sqrt" in first_nonfinite(program, *bad, names=names)
