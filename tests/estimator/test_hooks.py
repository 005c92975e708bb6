"""Hooks: what stops a run, what is best, and that a resumed run decides as the undisturbed one."""

from __future__ import annotations

import json
import math

import pytest

from systolic._errors import CheckpointError, InputError
from systolic.estimator._hooks import Best, EarlyStopping, Hook, HookList


class Run:
    def __init__(self):
        self.reasons = []

    def stop(self, reason):
        self.reasons.append(reason)


def evaluate(hook, values, run=None, name="loss", start=0):
    run = run or Run()
    for number, value in enumerate(values, start=start):
        hook.after_evaluate(run, 100 * (number + 1), {name: value})
        if run.reasons:
            return 100 * (number + 1)
    return None


def test_the_base_hook_does_nothing():
    hook, run = Hook(), Run()
    hook.begin(run)
    hook.after_steps(run, 1, {})
    hook.after_evaluate(run, 1, {})
    hook.after_save(run, 1)
    hook.end(run, 1)
    hook.restore(hook.state())
    assert run.reasons == []


@pytest.mark.parametrize(
    ("arguments", "values", "stopped"),
    [
        ({"patience": 2}, [5, 4, 4, 4, 1], 400),
        ({"patience": 2}, [5, 6, 4, 5, 3, 4], None),
        ({"patience": 1, "mode": "max"}, [1, 2, 3, 3], 400),
        ({"patience": 2, "min_delta": 0.5}, [5, 4.6, 4.4, 4.1, 3.95], 500),  # 4.4 gains 0.6; 4.1 and 3.95 at most 0.45
        ({"patience": 2}, [math.nan, math.inf], 200),
        ({"patience": 2}, [math.nan, 5, math.nan, 4, math.nan, math.inf], 600),
    ],
)
def test_stops_after_patience_evaluations_without_a_gain(arguments, values, stopped):
    assert evaluate(EarlyStopping("loss", **arguments), values) == stopped


def test_the_reason_names_metric_step_and_value():
    run = Run()
    evaluate(EarlyStopping("loss", patience=1), [0.25, 0.5], run)
    assert run.reasons == ["early stopping: loss was best at step 100 (0.25) and has not got better for 1 evaluations"]


@pytest.mark.parametrize("cut", range(7))
def test_a_resumed_run_stops_where_the_undisturbed_one_does(cut):
    values = [9, 7, 8, 6.5, 7, 7.5, 8, 1]
    expected = evaluate(EarlyStopping("loss", patience=3), values)
    assert expected == 700
    before = EarlyStopping("loss", patience=3)
    stopped = evaluate(before, values[:cut])
    after, run = EarlyStopping("loss", patience=3), Run()
    after.restore(json.loads(json.dumps(before.state())))
    after.begin(run)
    assert not run.reasons
    assert (stopped or evaluate(after, values[cut:], run, start=cut)) == expected


def test_a_run_that_was_stopped_stays_stopped_unless_patience_grows():
    stopped = EarlyStopping("loss", patience=1)
    evaluate(stopped, [1, 2])
    for patience, reasons in ((1, 1), (2, 0)):
        again, run = EarlyStopping("loss", patience=patience), Run()
        again.restore(stopped.state())
        again.begin(run)
        assert len(run.reasons) == reasons


def test_another_metric_does_not_inherit_the_count():
    old = EarlyStopping("loss", patience=1)
    evaluate(old, [1, 2])
    new, run = EarlyStopping("accuracy", patience=1, mode="max"), Run()
    new.restore(old.state())
    new.begin(run)
    assert not run.reasons
    assert new.best.value is None


def test_a_missing_metric_is_named_with_those_there_are():
    with pytest.raises(InputError, match=r"'acuracy' is not among the evaluation's: accuracy, loss"):
        EarlyStopping("acuracy", patience=1).after_evaluate(Run(), 1, {"loss": 1.0, "accuracy": 0.5})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EarlyStopping("loss", patience=0), r"patience\): saw 0"),
        (lambda: EarlyStopping("loss", patience=1, mode="low"), "mode is 'low'"),
        (lambda: Best("loss", min_delta=-1), "min_delta is -1"),
        (lambda: Best("loss", min_delta=math.nan), "min_delta is nan"),
        (lambda: HookList([EarlyStopping]), r"hooks\[0\] .*this is the class: call it"),
        (lambda: HookList([Hook(), print]), r"hooks\[1\]"),
    ],
)
def test_wrong_arguments_are_named(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_best_follows_the_best_and_keeps_the_first_of_equals():
    best = Best("accuracy", "max")
    updates = [best.update(step, {"accuracy": value}) for step, value in enumerate([math.nan, 0.5, 0.5, 0.7, 0.6])]
    assert updates == [False, True, False, True, False]
    assert (best.value, best.step) == (0.7, 3)
    other = Best("accuracy", "max")
    other.restore(json.loads(json.dumps(best.state())))
    assert (other.value, other.step) == (0.7, 3)
    assert not other.update(9, {"accuracy": 0.7})


class Recorder(Hook):
    def __init__(self, calls, name, fails=False):
        self.calls, self.name, self.fails = calls, name, fails

    def begin(self, run):
        self.calls.append((self.name, "begin"))

    def after_steps(self, run, step, metrics):
        self.calls.append((self.name, "steps", step))

    def after_save(self, run, step):
        self.calls.append((self.name, "save", step))

    def end(self, run, step):
        self.calls.append((self.name, "end", step))
        if self.fails:
            raise KeyError(self.name)

    def state(self):
        return {"name": self.name}

    def restore(self, state):
        self.name = state["name"]


def test_a_list_calls_its_hooks_in_order_and_ends_all_of_them():
    calls, run = [], Run()
    hooks = HookList([Recorder(calls, "a", fails=True), Recorder(calls, "b", fails=True)])
    hooks.begin(run)
    hooks.after_steps(run, 1, {})
    hooks.after_evaluate(run, 1, {})
    hooks.after_save(run, 1)
    with pytest.raises(KeyError, match="a"):
        hooks.end(run, 2)
    moments = [("begin",), ("steps", 1), ("save", 1), ("end", 2)]
    assert calls == [(name, *moment) for moment in moments for name in "ab"]


def test_states_find_their_hooks_by_class_also_when_hooks_come_and_go():
    old = HookList([Recorder([], "a"), Hook(), EarlyStopping("loss", patience=3), Recorder([], "b")])
    evaluate(old.hooks[2], [1, 2])
    saved = json.loads(json.dumps(old.state()))
    new = HookList([EarlyStopping("loss", patience=3), Recorder([], "x"), Recorder([], "y"), Recorder([], "z")])
    new.restore(saved)
    assert [h.name for h in new.hooks[1:]] == ["a", "b", "z"]
    assert new.hooks[0].waited == 1


def test_a_state_that_cannot_be_read_names_the_hook():
    with pytest.raises(CheckpointError, match="hook EarlyStopping: its saved state"):
        HookList([EarlyStopping("loss", patience=1)]).restore([["EarlyStopping", {"old": 1}]])
