"""Random numbers of a step: the same for the same seed, step and replica, on every device, after a resume too.

XLA's own generator, which TensorFlow's bridge takes for ``tf.random_uniform`` and the like, ignores seeds. Here these operations
count: the key is the graph's seed, the operation's seeds and the replica, the counter begins at the number of the step. A
variable of the step's own counts on from there, within loops, too.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
import zlib
from collections.abc import Callable
from typing import Any

from systolic.tf._tensorflow import tensorflow
from systolic.tf._threefry import threefry

_NAMES = (
    "random_uniform",
    "random_uniform_int",
    "random_standard_normal",
    "truncated_normal",
    "multinomial",
    "random_shuffle",
)
_WITHIN = 2.0  # standard deviations, of a truncated normal distribution


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
    _seed: int

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
        begun = tf.raw_ops.AssignVariableOp(
            resource=handle, value=tf.stack([tf.constant(0, tf.int64), number, replica])
        )
        with tf.control_dependencies([begun]):
            return cls(number, replica, handle.op.name, tf.identity(handle), int(graph.seed or 0))

    def words(self, shape: Any, seeds: tuple[Any, Any]) -> tuple[Any, Any]:
        """Two independent words of 32 bits for each element."""
        tf = tensorflow()
        shape = tf.convert_to_tensor(shape)
        count = tf.reduce_prod(tf.cast(shape, tf.int32))
        # What else this variable is made for: Philox, of which one more is counted here for each operation that runs.
        state = tf.raw_ops.RngReadAndSkip(resource=self._handle, alg=1, delta=tf.constant(1, tf.uint64))
        drawn, number, replica = (tf.bitcast(state[i], tf.uint32) for i in range(3))  # two words each, the lower first
        own = zlib.crc32(repr([self._seed, *(int(seed or 0) for seed in seeds)]).encode())
        key = tf.constant(own, tf.uint32), replica[0]
        key = threefry(key, tf.bitwise.bitwise_xor(drawn[0], number[1]), number[0])
        places = tf.reshape(tf.cast(tf.range(count), tf.uint32), tf.cast(shape, tf.int32))
        return threefry(key, places, tf.zeros_like(places))


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


def _fraction(words: tuple[Any, Any], dtype: Any) -> Any:
    """In [0, 1), all that the dtype can tell apart near 1."""
    tf = tensorflow()
    dtype = tf.as_dtype(dtype)
    digits = {tf.bfloat16: 8, tf.float16: 11}.get(dtype, 24)
    high = tf.bitwise.right_shift(words[0], tf.constant(32 - digits, tf.uint32))
    scaled = tf.cast(tf.cast(high, tf.int32), tf.float32) * 2.0**-digits
    if dtype != tf.float64:
        return tf.cast(scaled, dtype)
    low = tf.bitwise.right_shift(words[1], tf.constant(3, tf.uint32))
    return tf.cast(scaled, tf.float64) + tf.cast(tf.cast(low, tf.int32), tf.float64) * 2.0**-53


def _normal(words: tuple[Any, Any], dtype: Any, least: float, most: float) -> Any:
    """By the inverse of the distribution, between these values of the error function."""
    tf = tensorflow()
    wide = tf.float64 if tf.as_dtype(dtype) == tf.float64 else tf.float32
    half = 2.0**-54 if wide == tf.float64 else 2.0**-25  # so that neither end is met
    between = least + (most - least) * (_fraction(words, wide) + half)
    return tf.cast(math.sqrt(2) * tf.math.erfinv(between), dtype)


def _random_uniform(state: RandomState, shape: Any, dtype: Any, seed: Any = 0, seed2: Any = 0, name: Any = None) -> Any:
    return tensorflow().identity(_fraction(state.words(shape, (seed, seed2)), dtype), name=name)


def _random_uniform_int(
    state: RandomState, shape: Any, minval: Any, maxval: Any, seed: Any = 0, seed2: Any = 0, name: Any = None
) -> Any:
    """By the remainder, as the original: of a range that is no power of two, low numbers are a little more frequent."""
    tf = tensorflow()
    low, high = tf.convert_to_tensor(minval), tf.convert_to_tensor(maxval)
    unsigned = tf.uint64 if low.dtype == tf.int64 else tf.uint32
    words = state.words(shape, (seed, seed2))
    drawn = tf.cast(words[0], unsigned)
    if unsigned == tf.uint64:
        drawn = tf.bitwise.bitwise_or(
            tf.bitwise.left_shift(drawn, tf.constant(32, unsigned)), tf.cast(words[1], unsigned)
        )
    span = tf.bitcast(high - low, unsigned)
    return tf.add(low, tf.bitcast(drawn % span, low.dtype), name=name)


def _random_standard_normal(
    state: RandomState, shape: Any, dtype: Any, seed: Any = 0, seed2: Any = 0, name: Any = None
) -> Any:
    return tensorflow().identity(_normal(state.words(shape, (seed, seed2)), dtype, -1.0, 1.0), name=name)


def _truncated_normal(
    state: RandomState, shape: Any, dtype: Any, seed: Any = 0, seed2: Any = 0, name: Any = None
) -> Any:
    end = math.erf(_WITHIN / math.sqrt(2))
    return tensorflow().identity(_normal(state.words(shape, (seed, seed2)), dtype, -end, end), name=name)


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
    noise = -tf.math.log(-tf.math.log(_fraction(state.words(shape, (seed, seed2)), tf.float32) + 2.0**-25))
    return tf.argmax(logits[:, None, :] + noise, axis=-1, output_type=output_dtype or tf.int64, name=name)


def _random_shuffle(state: RandomState, value: Any, seed: Any = 0, seed2: Any = 0, name: Any = None) -> Any:
    """By sorting random numbers."""
    tf = tensorflow()
    value = tf.convert_to_tensor(value)
    order = tf.argsort(_fraction(state.words(tf.shape(value)[:1], (seed, seed2)), tf.float32))
    return tf.gather(value, order, name=name)
