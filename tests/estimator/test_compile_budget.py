"""The compile budget of an Estimator counts what it was given for: each of its programs by name."""

from __future__ import annotations

import pytest
from small_models import linear, make_data

import systolic as sl

DATA = make_data(32)


def engine_with(budget: int):
    estimator = linear(run={"compile_budget": budget})
    estimator.train(lambda: DATA, steps=2)
    return estimator._engine


def test_another_kind_of_batch_is_another_program_on_the_same_budget():
    engine = engine_with(1)
    engine.executable("predict")
    engine.executable("predict")
    with pytest.raises(sl.RecompileError) as error:
        engine.program("predict", engine.spec, 64).compile(engine.target)
    for part in (
        "'predict'",
        "budget of 1 is spent",
        "batch/features/x: was float32[",
        "now float32[64,3]",
        "RunConfig(compile_budget=…)",
    ):
        assert part in str(error.value)


def test_a_larger_budget_allows_it_and_each_name_has_its_own():
    engine = engine_with(2)
    engine.executable("eval")
    engine.executable("predict")
    engine.program("predict", engine.spec, 64).compile(engine.target)
    with pytest.raises(sl.RecompileError, match="budget of 2 is spent"):
        engine.program("predict", engine.spec, 128).compile(engine.target)


def test_training_again_and_evaluating_compile_nothing_more():
    estimator = linear()
    for _ in range(2):
        estimator.train(lambda: DATA, steps=3)
        estimator.evaluate(lambda: DATA)
        list(estimator.predict(lambda: DATA[0]))
    assert sorted(c.program for c in estimator._engine.compiles) == ["eval", "init", "predict", "train"]
