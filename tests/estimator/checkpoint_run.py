"""A training run for tests to disturb: ``python checkpoint_run.py FOLDER RESULT [options as JSON]``.

Prints a line at each moment of interest, so that a test can choose when to strike, and writes the final state to RESULT.
"""

from __future__ import annotations

import json
import sys

import numpy as np
import optax
from small_models import make_data, network, regression

import systolic as sl
from systolic import data


class Announce(sl.Hook):
    def begin(self, run):
        print("begin", flush=True)

    def after_steps(self, run, step, metrics):
        print("steps", step, flush=True)

    def after_evaluate(self, run, step, metrics):
        print("evaluated", step, flush=True)

    def after_save(self, run, step):
        print("saving", step, flush=True)

    def state(self):
        return None


def model_fn(model, features, labels, mode):
    print("tracing", mode.value, flush=True)  # what follows is the compile
    return regression(model, features, labels, mode)


def evaluation():
    print("evaluating", flush=True)
    features, labels = make_data(50, 9)
    for i in range(0, 50, 5):
        yield {"x": features["x"][i : i + 5]}, labels[i : i + 5]


def main(folder: str, result: str, options: dict) -> None:
    import jax

    steps = options.pop("steps", 60)
    estimator = network(
        folder,
        rate=0.3,
        norm=True,
        width=options.pop("width", 8),
        optimizer=optax.adam(0.01),
        ema=0.9,
        clip_norm=1.0,
        hooks=[Announce()],
        model_fn=model_fn,
        run={"checkpoint_every": 7, "log_every": 1, "keep": 2, **options},
    )
    estimator.train_and_evaluate(
        lambda: data.arrays(*make_data(100, 3), shuffle=11),
        lambda: data.batches(evaluation()),
        max_steps=steps,
        eval_every=10,
    )
    flat = {jax.tree_util.keystr(p): np.asarray(x) for p, x in jax.tree_util.tree_leaves_with_path(estimator.state)}
    np.savez(result, **flat)
    print("done", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]) if len(sys.argv) > 3 else {})
