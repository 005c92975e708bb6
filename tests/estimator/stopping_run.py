"""A training run whose input blocks, for tests to signal: ``python stopping_run.py FOLDER WHERE``.

Prints "blocked" where it waits without end: ``first`` (before the first batch), ``queue`` (after two loops of 5 batches),
``thread`` (after 12 batches, the last of them dear enough to be read by a thread) or ``evaluate`` (in the second batch of
an evaluation); or in a hook, whatever the first signal says: ``hook``.
"""

from __future__ import annotations

import queue
import sys
import time

from small_models import linear, make_data

import systolic as sl

features, labels = make_data(40)


def rows(i):
    i = 8 * (i % 5)
    return {"x": features["x"][i : i + 8]}, labels[i : i + 8]


def block():
    print("blocked", flush=True)
    queue.Queue().get()


def source(count, slow):
    for i in range(count):
        time.sleep(0.01 if slow else 0)
        yield rows(i)
    block()


class Stuck(sl.Hook):
    def after_steps(self, run, step, metrics):
        print("blocked", flush=True)
        end = time.monotonic() + 60
        while time.monotonic() < end:  # the first signal returns from one sleep, and is not looked at
            time.sleep(0.1)


def main(folder: str, where: str) -> None:
    count = {"first": 0, "queue": 10, "thread": 12, "evaluate": 100, "hook": 100}[where]
    run = {"steps_per_loop": 5 if where == "queue" else 1, "log_every": 3 if where == "hook" else 50}
    estimator = linear(folder, hooks=[Stuck()] if where == "hook" else [], run=run)
    train = lambda: sl.data.batches(source(count, where == "thread"))  # noqa: E731
    if where == "evaluate":
        estimator.train_and_evaluate(
            train, lambda: sl.data.batches(source(1, False)), max_steps=20, eval_every=4, eval_steps=2
        )
    else:
        estimator.train(train, steps=50)


if __name__ == "__main__":
    main(*sys.argv[1:])
