"""Random numbers of a step: the same for the same seed, step and replica, on every device, after a resume too.

XLA's own generator, which TensorFlow's bridge takes for ``tf.random_uniform`` and the like, ignores seeds. Here these operations
become counter-based ones (Philox, Salmon et al. 2011). The key is the graph's seed and the replica, the counter begins at the
number of the step; a variable of the step's own counts on from there, within loops, too.
"""

from __future__ import annotations

import dataclasses
import importlib
import zlib
from collections.abc import Callable
from typing import Any

from systolic.tf._tensorflow import tensorflow

_PHILOX = 1
_NAMES = (
    "random_uniform",
    "random_uniform_int",
    "random_standard_normal",
    "truncated_normal",
    "multinomial",
    "random_shuffle",
)


@dataclasses.dataclass(frozen=True, eq=False)
class RandomState:
    """Of one section.

    Attributes:
        number: placeholder for the number of the step, int64.
        replica: placeholder for the number of the replica, int64.
        variable: name of the variable that counts; its value before a step is of no matter.
    """

    number: Any
    replica: Any
    variable: str
    _handle: Any

    @classmethod
    def make(cls, placeholder: Callable[..., Any]) -> RandomState:
        """In the current graph, outside of loops and branches.

        Args:
            placeholder: makes one, of a dtype, shape and name.
        """
        tf = tensorflow()
        graph = tf.compat.v1.get_default_graph()
        number, replica = (placeholder(tf.int64, (), name) for name in ("step_number", "replica_number"))
        handle = tf.raw_ops.VarHandleOp(
            dtype=tf.int64, shape=[3], shared_name=graph.unique_name("random_state"), name="random_state"
        )
        key = replica + (int(graph.seed or 0) << 32)
        begun = tf.raw_ops.AssignVariableOp(resource=handle, value=tf.stack([tf.constant(0, tf.int64), number, key]))
        with tf.control_dependencies([begun]):
            return cls(number, replica, handle.op.name, tf.identity(handle))

    def next(self, shape: Any, seeds: tuple[Any, Any]) -> tuple[Any, Any]:
        """Key and counter for as many numbers."""
        tf = tensorflow()
        count = tf.cast(tf.reduce_prod(tf.convert_to_tensor(shape)), tf.uint64)
        state = tf.raw_ops.RngReadAndSkip(resource=self._handle, alg=_PHILOX, delta=count)
        own = zlib.crc32(repr([int(seed or 0) for seed in seeds]).encode())
        return tf.bitcast(state[2:] + own, tf.uint64), tf.bitcast(state[:2], tf.uint64)


def replace_random(current: Callable[[], RandomState | None]) -> None:
    """Replace the operations' constructors, once and for this process.

    Args:
        current: the state of the section that is being built; ``None`` where none is, as in a variable's initializer.
    """
    module: Any = importlib.import_module("tensorflow.python.ops.gen_random_ops")
    for name in _NAMES:
        _replace(module, name, globals()[f"_{name}"], current)


def _replace(module: Any, name: str, ours: Callable[..., Any], current: Callable[[], RandomState | None]) -> None:
    theirs = getattr(module, name)

    def function(*args: Any, **kwargs: Any) -> Any:
        state = current()
        return theirs(*args, **kwargs) if state is None else ours(state, *args, **kwargs)

    setattr(module, name, function)


def _random_uniform(state: RandomState, shape: Any, dtype: Any, seed: Any = 0, seed2: Any = 0, name: Any = None) -> Any:
    key, counter = state.next(shape, (seed, seed2))
    return tensorflow().raw_ops.StatelessRandomUniformV2(
        shape=shape, key=key, counter=counter, alg=_PHILOX, dtype=dtype, name=name
    )


def _random_uniform_int(
    state: RandomState, shape: Any, minval: Any, maxval: Any, seed: Any = 0, seed2: Any = 0, name: Any = None
) -> Any:
    key, counter = state.next(shape, (seed, seed2))
    return tensorflow().raw_ops.StatelessRandomUniformIntV2(
        shape=shape, key=key, counter=counter, alg=_PHILOX, minval=minval, maxval=maxval, name=name
    )


def _random_standard_normal(
    state: RandomState, shape: Any, dtype: Any, seed: Any = 0, seed2: Any = 0, name: Any = None
) -> Any:
    key, counter = state.next(shape, (seed, seed2))
    return tensorflow().raw_ops.StatelessRandomNormalV2(
        shape=shape, key=key, counter=counter, alg=_PHILOX, dtype=dtype, name=name
    )


def _truncated_normal(
    state: RandomState, shape: Any, dtype: Any, seed: Any = 0, seed2: Any = 0, name: Any = None
) -> Any:
    key, counter = state.next(shape, (seed, seed2))
    return tensorflow().raw_ops.StatelessTruncatedNormalV2(
        shape=shape, key=key, counter=counter, alg=_PHILOX, dtype=dtype, name=name
    )


def _multinomial(
    state: RandomState,
    logits: Any,
    num_samples: Any,
    seed: Any = 0,
    seed2: Any = 0,
    output_dtype: Any = None,
    name: Any = None,
) -> Any:
    """By the largest of logits plus Gumbel noise."""
    tf = tensorflow()
    logits = tf.cast(logits, tf.float32)
    batch, classes = tf.unstack(tf.shape(logits))
    shape = tf.stack([batch, tf.cast(num_samples, tf.int32), classes])
    uniform = tf.maximum(_random_uniform(state, shape, tf.float32, seed, seed2), 1e-37)
    noise = -tf.math.log(-tf.math.log(uniform))
    return tf.argmax(logits[:, None, :] + noise, axis=-1, output_type=output_dtype or tf.int64, name=name)


def _random_shuffle(state: RandomState, value: Any, seed: Any = 0, seed2: Any = 0, name: Any = None) -> Any:
    """By sorting random numbers."""
    tf = tensorflow()
    value = tf.convert_to_tensor(value)
    order = tf.argsort(_random_uniform(state, tf.shape(value)[:1], tf.float32, seed, seed2))
    return tf.gather(value, order, name=name)
