"""Training by TPUEstimator, float32: on the TPU system beneath it (one CPU device) against the same model function in a plain
TensorFlow session (``use_tpu=False``), of the same TensorFlow.

Steps are timed from the end of the first loop on: each call of train() builds and compiles its graph again, which is not what is
compared.

    python benchmarks/tf_scripts.py [--rounds 5] [--models mlp mnist bert resnet18]
"""

import argparse
import importlib.util
import math
import pathlib
import statistics
import tempfile

HERE = pathlib.Path(__file__).resolve()
LOOPS = 4


def mlp(tf, x):
    return tf.layers.dense(tf.layers.dense(x, 128, tf.nn.relu), 10)


def mnist(tf, x):
    x = tf.reshape(x, [x.shape[0], 28, 28, 1])
    for filters in (32, 64):
        x = tf.layers.conv2d(x, filters, 5, padding="same", activation=tf.nn.relu)
        x = tf.layers.max_pooling2d(x, 2, 2)
    x = tf.layers.dense(tf.reshape(x, [x.shape[0], -1]), 1024, tf.nn.relu)
    return tf.layers.dense(tf.layers.dropout(x, 0.4, training=True), 10)


def bert(tf, x):
    """Four layers of 128, four heads, 28 tokens, dropout."""
    batch, tokens, width, heads = int(x.shape[0]), 28, 128, 4
    h = tf.layers.dense(tf.reshape(x, [batch, tokens, 28]), width)

    def split(y):
        return tf.transpose(tf.reshape(y, [batch, tokens, heads, width // heads]), [0, 2, 1, 3])

    for _ in range(4):
        q, k, v = (split(tf.layers.dense(h, width)) for _ in range(3))
        weights = tf.nn.softmax(tf.matmul(q, k, transpose_b=True) / math.sqrt(width / heads))
        mixed = tf.transpose(tf.matmul(tf.nn.dropout(weights, rate=0.1), v), [0, 2, 1, 3])
        h += tf.nn.dropout(tf.layers.dense(tf.reshape(mixed, [batch, tokens, width]), width), rate=0.1)
        h += tf.layers.dense(tf.layers.dense(h, 4 * width, tf.nn.relu), width)
    return tf.layers.dense(tf.reduce_mean(h, 1), 10)


def resnet18(tf, x):
    """On 28x28 images."""

    def conv(y, filters, size=3, stride=1):
        y = tf.layers.conv2d(y, filters, size, stride, padding="same", use_bias=False)
        return tf.layers.batch_normalization(y, training=True, fused=True)

    y = tf.nn.relu(conv(tf.reshape(x, [x.shape[0], 28, 28, 1]), 64))
    for stage, filters in enumerate((64, 128, 256, 512)):
        for block in range(2):
            stride = 2 if stage and not block else 1
            short = conv(y, filters, 1, stride) if stride > 1 else y
            y = tf.nn.relu(short + conv(tf.nn.relu(conv(y, filters, 3, stride)), filters))
    return tf.layers.dense(tf.reduce_mean(y, [1, 2]), 10)


MODELS = {"mlp": (mlp, 128, 500), "mnist": (mnist, 128, 10), "bert": (bert, 32, 25), "resnet18": (resnet18, 32, 2)}
"""Network, batch, steps of a loop."""


def contestant(name, use_tpu):
    import warnings

    import numpy as np

    from systolic.tf._estimator import estimator_api
    from systolic.tf._system import switch_on

    warnings.simplefilter("ignore")
    if use_tpu:
        switch_on("cpu:1")
    api = estimator_api()
    import tensorflow

    tf = tensorflow.compat.v1
    tf.disable_v2_behavior()
    tf.logging.set_verbosity("ERROR")
    network, batch, loop = MODELS[name]
    rng = np.random.default_rng(0)
    images, labels = rng.random((1024, 784)).astype("float32"), rng.integers(0, 10, 1024).astype("int32")

    def input_fn(params):
        data = tf.data.Dataset.from_tensor_slices((images, labels)).repeat()
        return data.batch(params["batch_size"], drop_remainder=True).prefetch(4)

    def model_fn(features, labels, mode, params):
        loss = tf.losses.sparse_softmax_cross_entropy(labels, network(tf, features))
        optimizer = tf.train.AdamOptimizer(1e-3)
        if params["use_tpu"]:
            optimizer = tf.tpu.CrossShardOptimizer(optimizer)
        with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
            train = optimizer.minimize(loss, tf.train.get_global_step())
        return api.tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train)

    class Clock(tf.train.SessionRunHook):
        """Step and time after each run of the session."""

        def begin(self):
            self.seen = []

        def before_run(self, context):
            return tf.train.SessionRunArgs(tf.train.get_global_step())

        def after_run(self, context, values):
            import time

            self.seen.append((int(values.results), time.perf_counter()))

    config = api.tpu.RunConfig(
        save_checkpoints_steps=None,
        save_checkpoints_secs=None,
        save_summary_steps=None,
        log_step_count_steps=None,
        tpu_config=api.tpu.TPUConfig(iterations_per_loop=loop),
    )

    def segment():
        clock = Clock()
        with tempfile.TemporaryDirectory() as folder:
            estimator = api.tpu.TPUEstimator(
                model_fn, folder, config, params={}, use_tpu=use_tpu, train_batch_size=batch
            )
            estimator.train(input_fn, steps=LOOPS * loop, hooks=[clock])
        first = next(i for i, (step, _) in enumerate(clock.seen) if step - clock.seen[0][0] >= loop - 1)
        (start, began), (end, ended) = clock.seen[first], clock.seen[-1]
        return end - start, ended - began

    return segment, {"tensorflow": tensorflow.__version__, "batch": batch}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--models", nargs="*", choices=MODELS, default=list(MODELS))
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        from _worker import serve

        name, _, where = args.worker.partition(",")
        return serve(*contestant(name, where == "systolic"))
    if importlib.util.find_spec("tensorflow") is None:
        raise SystemExit("needs TensorFlow: pip install 'systolic[tensorflow]'")
    from _alternate import Contestant, alternate, report

    ratios = []
    for name in args.models:
        pair = [Contestant(where, [str(HERE), "--worker", f"{name},{where}"]) for where in ("session", "systolic")]
        results = alternate(pair, args.rounds)
        report(f"{name}, training, Adam, float32", "steps/s", results, [("systolic", "session", 0.6)])
        ours, theirs = results["systolic"].rates, results["session"].rates
        ratios.append(statistics.median(a / b for a, b in zip(ours, theirs)))
    print(f"\ngeometric mean of {len(ratios)} ratios: {statistics.geometric_mean(ratios):.3f}, wanted ≥ 1.0")
    return None


if __name__ == "__main__":
    main()
