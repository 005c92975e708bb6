"""Compute-bound training: ResNet-18 on 32x32 images, batch 128, float32, SGD with momentum.

Contestants: a hand-written loop over a jitted step with the same Flax NNX model, ours, Keras 3 on JAX, and (where its
environment exists) TPUEstimator of TensorFlow 2.15 on the CPU. All get the same NumPy batches.

    python benchmarks/compute_resnet18.py [--rounds 5] [--tf-python PATH]
"""

import argparse
import pathlib
import sys

SIZE, CLASSES, BATCH, STEPS = 32, 10, 128, 2
WIDTHS = (64, 128, 256, 512)
HERE = pathlib.Path(__file__).resolve()


def batches():
    import numpy as np

    rng = np.random.default_rng(0)
    images = rng.standard_normal((4, BATCH, SIZE, SIZE, 3)).astype("float32")
    labels = rng.integers(0, CLASSES, (4, BATCH)).astype("int32")
    return list(zip(images, labels))


def endless(items):
    while True:
        yield from items


def _resnet(rngs):
    sys.path.insert(0, str(HERE.parents[1] / "examples" / "resnet"))
    from resnet import ResNet

    return ResNet(18, CLASSES, small_images=True, rngs=rngs)


def hand_written():
    import jax
    import optax
    from flax import nnx

    optimizer = optax.sgd(0.1, momentum=0.9)
    graph, params, rest = nnx.split(_resnet(nnx.Rngs(0)), nnx.Param, ...)
    state = [params, rest, optimizer.init(params)]

    def step(params, rest, opt_state, x, y):
        def loss_fn(params):
            model = nnx.merge(graph, params, rest, copy=True)
            model.train()
            loss = optax.losses.softmax_cross_entropy_with_integer_labels(model(x), y).mean()
            return loss, nnx.split(model, nnx.Param, ...)[2]

        (loss, rest), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), rest, opt_state, loss

    step = jax.jit(step, donate_argnums=(0, 1, 2))
    feed = endless(batches())

    def segment():
        for _ in range(STEPS):
            *state[:], _ = step(*state, *next(feed))
        jax.block_until_ready(state)
        return STEPS

    return segment, {"jax": jax.__version__}


def ours():
    import jax
    import optax

    import systolic as sl

    def model_fn(model, features, labels, mode):
        return sl.EstimatorSpec(loss=optax.losses.softmax_cross_entropy_with_integer_labels(model(features), labels))

    estimator = sl.Estimator(
        lambda rngs: _resnet(rngs),
        model_fn,
        optax.sgd(0.1, momentum=0.9),
        train_batch_size=BATCH,
        config=sl.RunConfig(target="cpu:1", progress=False),
    )
    ready = batches()

    def segment():
        estimator.train(lambda: endless(ready), steps=STEPS)
        jax.block_until_ready(estimator.state)
        return STEPS

    return segment, {"systolic": sl.__version__}


def _forward(x, conv, norm, relu, add, mean, dense):
    """ResNet-18 for small images over another library's layers."""
    x = relu(norm(conv(x, WIDTHS[0], 3, 1)))
    for stage, width in enumerate(WIDTHS):
        for block in range(2):
            stride = 2 if stage and not block else 1
            y = relu(norm(conv(x, width, 3, stride)))
            y = norm(conv(y, width, 3, 1))
            if stride != 1:
                x = norm(conv(x, width, 1, stride))
            x = relu(add(x, y))
    return dense(mean(x))


def keras_on_jax():
    import keras
    from keras import layers

    inputs = keras.Input((SIZE, SIZE, 3))
    outputs = _forward(
        inputs,
        conv=lambda x, width, size, stride: layers.Conv2D(width, size, stride, padding="same", use_bias=False)(x),
        norm=lambda x: layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(x),
        relu=lambda x: layers.ReLU()(x),
        add=lambda x, y: layers.Add()([x, y]),
        mean=lambda x: layers.GlobalAveragePooling2D()(x),
        dense=lambda x: layers.Dense(CLASSES)(x),
    )
    model = keras.Model(inputs, outputs)
    model.compile(
        optimizer=keras.optimizers.SGD(0.1, momentum=0.9),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    feed = endless(batches())

    def segment():
        model.fit(feed, steps_per_epoch=STEPS, epochs=1, verbose=0)
        return STEPS

    return segment, {"keras": keras.__version__, "backend": keras.backend.backend()}


def tpu_estimator():
    import tempfile
    import warnings

    import numpy as np
    import tensorflow as tf

    warnings.simplefilter("ignore")
    tf1 = tf.compat.v1
    tf1.logging.set_verbosity("ERROR")

    def model_fn(features, labels, mode, params):
        logits = _forward(
            features,
            conv=lambda x, w, size, stride: tf1.layers.conv2d(x, w, size, stride, padding="same", use_bias=False),
            norm=lambda x: tf1.layers.batch_normalization(x, momentum=0.9, epsilon=1e-5, training=True, fused=True),
            relu=tf.nn.relu,
            add=lambda x, y: x + y,
            mean=lambda x: tf.reduce_mean(x, [1, 2]),
            dense=lambda x: tf1.layers.dense(x, CLASSES),
        )
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
        with tf.control_dependencies(tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)):
            train = tf1.train.MomentumOptimizer(0.1, 0.9).minimize(loss, tf1.train.get_global_step())
        return tf1.estimator.tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train)

    x, y = (np.concatenate(column) for column in zip(*batches()))

    def input_fn(params):
        return tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(BATCH, drop_remainder=True).prefetch(2)

    config = tf1.estimator.tpu.RunConfig(
        model_dir=tempfile.mkdtemp(),
        save_checkpoints_steps=None,
        save_checkpoints_secs=None,
        tpu_config=tf1.estimator.tpu.TPUConfig(iterations_per_loop=STEPS),
    )
    estimator = tf1.estimator.tpu.TPUEstimator(model_fn, use_tpu=False, train_batch_size=BATCH, config=config)

    class Clock(tf1.train.SessionRunHook):
        """Times the steps alone: each call of train() builds its graph again, which is not what is compared."""

        def before_run(self, context):
            import time

            self.started = getattr(self, "started", None) or time.perf_counter()

        def after_run(self, context, values):
            import time

            self.ended = time.perf_counter()

    def segment():
        clock = Clock()
        estimator.train(input_fn, steps=STEPS, hooks=[clock])
        return STEPS, clock.ended - clock.started

    return segment, {"tensorflow": tf.__version__}


CONTESTANTS = {
    "hand-written": hand_written,
    "ours": ours,
    "Keras on JAX": keras_on_jax,
    "TPUEstimator 2.15": tpu_estimator,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tf-python", help="interpreter of an environment with tensorflow-cpu 2.15")
    parser.add_argument("--only", nargs="*", help="contestants to run")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        from _worker import serve

        return serve(*CONTESTANTS[args.worker]())
    from _alternate import report, run_all

    report(
        f"ResNet-18, {SIZE}x{SIZE}x3, batch {BATCH}, float32, SGD with momentum; segments of {STEPS} steps",
        "steps/s",
        run_all(HERE, list(CONTESTANTS), args),
        [("ours", "hand-written", 0.99), ("ours", "Keras on JAX", 1.1), ("ours", "TPUEstimator 2.15", 1.0)],
    )
    return None


if __name__ == "__main__":
    main()
