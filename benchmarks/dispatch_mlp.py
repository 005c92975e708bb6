"""Dispatch-bound training: an MLP whose step takes about 50 µs, fed from NumPy batches.

Contestants: a hand-written loop over a jitted step, a bare scan of 100 steps (stacked beforehand: what the step itself
costs, hence the most that any device loop reaches), ours with 1 and with 100 steps per dispatch, Keras 3 on JAX with 100
steps per execution, and (where its environment exists) TPUEstimator of TensorFlow 2.15 on the CPU.

    python benchmarks/dispatch_mlp.py [--rounds 7] [--tf-python PATH]
"""

import argparse
import pathlib

INPUTS, HIDDEN, CLASSES, BATCH, STEPS = 64, 64, 10, 32, 20_000


def batches():
    """500 batches of float32 inputs and int32 labels."""
    import numpy as np

    rng = np.random.default_rng(0)
    x = rng.standard_normal((500, BATCH, INPUTS)).astype("float32")
    y = rng.integers(0, CLASSES, (500, BATCH)).astype("int32")
    return list(zip(x, y))


def endless(items):
    while True:
        yield from items


def hand_written(scan=1):
    """A jitted step and a loop in Python; ``scan``: steps in one ``lax.scan``, of batches that lie stacked beforehand."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax

    k1, k2 = jax.random.split(jax.random.key(0))
    params = {
        "w1": jax.random.normal(k1, (INPUTS, HIDDEN)) * 0.1,
        "b1": jnp.zeros(HIDDEN),
        "w2": jax.random.normal(k2, (HIDDEN, CLASSES)) * 0.1,
        "b2": jnp.zeros(CLASSES),
    }
    optimizer = optax.sgd(0.01, momentum=0.9)

    def loss_fn(params, x, y):
        logits = jax.nn.relu(x @ params["w1"] + params["b1"]) @ params["w2"] + params["b2"]
        return optax.losses.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    def step(params, opt_state, x, y):
        loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    def several(params, opt_state, x, y):
        def body(carry, batch):
            *carry, loss = step(*carry, *batch)
            return tuple(carry), loss

        carry, losses = jax.lax.scan(body, (params, opt_state), (x, y))
        return *carry, losses

    ready = batches()
    if scan > 1:
        groups = [zip(*ready[i : i + scan]) for i in range(0, len(ready), scan)]
        ready = [tuple(np.stack(column) for column in group) for group in groups]
    run = jax.jit(step if scan == 1 else several, donate_argnums=(0, 1))
    state = [params, optimizer.init(params)]
    feed = endless(ready)

    def segment():
        params, opt_state = state
        for _ in range(STEPS // scan):
            x, y = next(feed)
            params, opt_state, _ = run(params, opt_state, x, y)
        jax.block_until_ready(params)
        state[:] = params, opt_state
        return STEPS

    return segment, {"jax": jax.__version__}


def ours(steps_per_loop):
    import jax
    import optax
    from flax import nnx

    import systolic as sl

    class MLP(nnx.Module):
        def __init__(self, rngs):
            self.hidden = nnx.Linear(INPUTS, HIDDEN, rngs=rngs)
            self.head = nnx.Linear(HIDDEN, CLASSES, rngs=rngs)

        def __call__(self, x):
            return self.head(nnx.relu(self.hidden(x)))

    def model_fn(model, features, labels, mode):
        logits = model(features)
        return sl.EstimatorSpec(loss=optax.losses.softmax_cross_entropy_with_integer_labels(logits, labels))

    estimator = sl.Estimator(
        lambda rngs: MLP(rngs),
        model_fn,
        optax.sgd(0.01, momentum=0.9),
        train_batch_size=BATCH,
        config=sl.RunConfig(target="cpu:1", steps_per_loop=steps_per_loop, progress=False, log_every=1000),
    )
    ready = batches()

    def segment():
        estimator.train(lambda: endless(ready), steps=STEPS)
        jax.block_until_ready(estimator.state)
        return STEPS

    return segment, {"systolic": sl.__version__, "steps_per_loop": steps_per_loop}


def keras_on_jax():
    import keras

    model = keras.Sequential(
        [keras.Input((INPUTS,)), keras.layers.Dense(HIDDEN, activation="relu"), keras.layers.Dense(CLASSES)]
    )
    model.compile(
        optimizer=keras.optimizers.SGD(0.01, momentum=0.9),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        steps_per_execution=100,
    )
    feed = endless(batches())

    def segment():
        model.fit(feed, steps_per_epoch=STEPS, epochs=1, verbose=0)
        return STEPS

    return segment, {"keras": keras.__version__, "backend": keras.backend.backend(), "steps_per_execution": 100}


def tpu_estimator():
    import tempfile

    import tensorflow as tf

    tf1 = tf.compat.v1
    tf1.logging.set_verbosity("ERROR")

    def model_fn(features, labels, mode, params):
        hidden = tf1.layers.dense(features, HIDDEN, activation=tf.nn.relu)
        logits = tf1.layers.dense(hidden, CLASSES)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
        train = tf1.train.MomentumOptimizer(0.01, 0.9).minimize(loss, tf1.train.get_global_step())
        return tf1.estimator.tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train)

    ready = batches()

    def input_fn(params):
        import numpy as np

        x, y = (np.concatenate(column) for column in zip(*ready))
        return tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH, drop_remainder=True).repeat().prefetch(100)

    config = tf1.estimator.tpu.RunConfig(
        model_dir=tempfile.mkdtemp(), tpu_config=tf1.estimator.tpu.TPUConfig(iterations_per_loop=100)
    )
    estimator = tf1.estimator.tpu.TPUEstimator(model_fn, use_tpu=False, train_batch_size=BATCH, config=config)

    def segment():
        estimator.train(input_fn, steps=STEPS)
        return STEPS

    return segment, {"tensorflow": tf.__version__}


CONTESTANTS = {
    "hand-written": hand_written,
    "bare scan of 100 steps": lambda: hand_written(100),
    "ours, 1 step a dispatch": lambda: ours(1),
    "ours, 100 steps a dispatch": lambda: ours(100),
    "Keras on JAX": keras_on_jax,
    "TPUEstimator 2.15": tpu_estimator,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tf-python", help="interpreter of an environment with tensorflow-cpu 2.15")
    parser.add_argument("--only", nargs="*", help="contestants to run")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        from _worker import serve

        return serve(*CONTESTANTS[args.worker]())
    from _alternate import report, run_all

    one, hundred = "ours, 1 step a dispatch", "ours, 100 steps a dispatch"
    report(
        f"MLP {INPUTS}-{HIDDEN}-{CLASSES}, batch {BATCH}, float32, SGD with momentum; segments of {STEPS} steps",
        "steps/s",
        run_all(pathlib.Path(__file__).resolve(), list(CONTESTANTS), args),
        [
            (one, "hand-written", 0.97),
            (hundred, "hand-written", 2.5),
            (hundred, "bare scan of 100 steps", None),
            (hundred, "Keras on JAX", 2.5),
            (hundred, "TPUEstimator 2.15", 5.0),
        ],
    )
    return None


if __name__ == "__main__":
    main()
