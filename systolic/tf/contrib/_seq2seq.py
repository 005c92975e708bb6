"""``tf.contrib.seq2seq``: the loss and what has few lines; decoders and attention went to another package, and are no more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from systolic.tf._tensorflow import tensorflow
from systolic.tf.contrib._table import Table, alike, each

_LOOP = "write the loop with tf.while_loop and maximum_iterations, which a TPU needs anyway"
_ATTENTION = "write it with tf.matmul and tf.nn.softmax"

TABLE = Table(
    served=each("systolic.tf.contrib._seq2seq:", "sequence_loss tile_batch hardmax"),
    instead=alike(
        "Decoder dynamic_decode BasicDecoder BasicDecoderOutput BeamSearchDecoder BeamSearchDecoderOutput BeamSearchDecoderState "
        "Helper CustomHelper FinalBeamSearchDecoderOutput GreedyEmbeddingHelper InferenceHelper SampleEmbeddingHelper "
        "ScheduledEmbeddingTrainingHelper ScheduledOutputTrainingHelper TrainingHelper gather_tree",
        _LOOP,
    )
    | alike(
        "BahdanauAttention LuongAttention AttentionWrapperState AttentionWrapper AttentionMechanism BahdanauMonotonicAttention "
        "LuongMonotonicAttention monotonic_attention monotonic_probability_fn safe_cumprod",
        _ATTENTION,
    ),
    private=alike("python.ops python.ops.loss", ""),
)


def sequence_loss(
    logits: Any,
    targets: Any,
    weights: Any,
    average_across_timesteps: bool = True,
    average_across_batch: bool = True,
    softmax_loss_function: Callable[..., Any] | None = None,
    name: str | None = None,
) -> Any:
    """Cross entropy of sequences, weighted.

    Args:
        logits: float, [batch, time, classes].
        targets: int, [batch, time].
        weights: float, [batch, time].
        average_across_timesteps: divide by the sum of the weights over time.
        average_across_batch: divide by their sum over the batch.
        softmax_loss_function: of ``labels`` and ``logits``, instead of the cross entropy.

    Returns:
        A scalar; of one sequence each, [batch], where only time is averaged; of one step each, [time], where only the
        batch is; else [batch, time].

    Raises:
        ValueError: arguments of other ranks.
    """
    tf = tensorflow().compat.v1
    for argument, tensor, rank in (("logits", logits, 3), ("targets", targets, 2), ("weights", weights, 2)):
        if len(tensor.shape) != rank:
            raise ValueError(f"sequence_loss({argument}): saw the shape {tensor.shape}, wanted {rank} axes")
    with tf.name_scope(name, "sequence_loss", [logits, targets, weights]):
        loss_of = softmax_loss_function or tf.nn.sparse_softmax_cross_entropy_with_logits
        losses = loss_of(labels=targets, logits=logits) * weights
        over = {(True, True): None, (True, False): [1], (False, True): [0]}
        averaged = (bool(average_across_timesteps), bool(average_across_batch))
        if averaged == (False, False):
            return losses
        axes = over[averaged]
        # As upstream: an empty sum of weights gives 0, not NaN.
        return tf.reduce_sum(losses, axes) / (tf.reduce_sum(weights, axes) + 1e-12)


def tile_batch(t: Any, multiplier: int, name: str | None = None) -> Any:
    """Repeat each row ``multiplier`` times, rows of one beside each other: [batch, …] gives [batch · multiplier, …]."""
    tf = tensorflow().compat.v1
    with tf.name_scope(name, "tile_batch"):
        return tf.nest.map_structure(lambda x: tf.repeat(x, multiplier, axis=0), t)


def hardmax(logits: Any, name: str | None = None) -> Any:
    """One at the largest of the last axis, and zeros."""
    tf = tensorflow().compat.v1
    with tf.name_scope(name, "Hardmax", [logits]):
        logits = tf.convert_to_tensor(logits)
        return tf.one_hot(tf.argmax(logits, -1), logits.shape[-1], dtype=logits.dtype)
