"""Start-up: what ``import systolic`` costs beside ``import jax``, and a second start beside the first.

The start trains a ResNet-18 (32x32, batch 32) for one step in a new process, first with an empty compile cache, then with
the one it left behind. Time runs from the start of the process to the end of the first step.

    python benchmarks/startup.py [--rounds 3]
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
START = """
import sys; sys.path.insert(0, "examples/resnet")
import numpy as np, optax, systolic as sl
from resnet import ResNet
def model_fn(model, features, labels, mode):
    return sl.EstimatorSpec(loss=optax.losses.softmax_cross_entropy_with_integer_labels(model(features), labels))
data = np.zeros((32, 32, 32, 3), "float32"), np.zeros(32, "int32")
estimator = sl.Estimator(lambda rngs: ResNet(18, 10, small_images=True, rngs=rngs), model_fn, optax.sgd(0.1),
                         train_batch_size=32, config=sl.RunConfig(target="cpu:1", progress=False))
estimator.train(lambda: data, steps=1)
"""


def seconds(code: str, **env: str) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, env=os.environ | {"JAX_PLATFORMS": "cpu"} | env)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds

    seconds("import jax, systolic")
    pairs = [(seconds("import systolic"), seconds("import jax")) for _ in range(3 * rounds)]
    ours, theirs = (statistics.median(column) for column in zip(*pairs))
    ratio = statistics.median(a / b for a, b in pairs)
    print(f"import systolic {ours:.3f} s, import jax {theirs:.3f} s: {ratio:.2f}, wanted ≤ 1.2")

    starts = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            starts.append([seconds(START, SYSTOLIC_CACHE_DIR=folder) for _ in range(2)])
    first, second = (statistics.median(column) for column in zip(*starts))
    ratio = statistics.median(b / a for a, b in starts)
    print(f"ResNet-18 to its first step: first {first:.1f} s, second {second:.1f} s: {ratio:.2f}, wanted ≤ 0.4")


if __name__ == "__main__":
    main()
