"""``tf.contrib.layers``: ``layer_norm`` is ours, the rest is in tf_slim, which is where it went."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import Any

from systolic.tf._tensorflow import tensorflow
from systolic.tf.contrib._table import Table, alike, each

_LAYERS = """avg_pool2d avg_pool3d batch_norm bias_add conv1d conv2d conv2d_in_plane conv2d_transpose conv3d
conv3d_transpose convolution convolution1d convolution2d convolution2d_in_plane convolution2d_transpose convolution3d
convolution3d_transpose dense_to_sparse dropout elu flatten fully_connected gdn GDN images_to_sequence
legacy_fully_connected legacy_linear legacy_relu linear max_pool2d max_pool3d maxout one_hot_encoding pool relu relu6
repeat scale_gradient separable_conv2d separable_convolution2d sequence_to_images softmax spatial_softmax stack unit_norm
"""
_OTHERS = """OPTIMIZER_CLS_NAMES OPTIMIZER_SUMMARIES adaptive_clipping_fn apply_regularization bucketize group_norm instance_norm
l1_l2_regularizer l1_regularizer l2_regularizer optimize_loss recompute_grad rev_block sum_regularizer
summarize_activation summarize_activations summarize_collection summarize_tensor summarize_tensors
variance_scaling_initializer xavier_initializer xavier_initializer_conv2d RevBlock
"""
_COLUMNS = "use tf.feature_column with tf.estimator"

TABLE = Table(
    served=each("tf_slim.layers:", _LAYERS)
    | each("tf_slim:", _OTHERS)
    | {"summaries": "tf_slim.layers.summaries:", "layer_norm": "systolic.tf.contrib._layers:layer_norm()"},
    instead={
        "embed_sequence": "use tf.nn.embedding_lookup on a tf.get_variable",
        "bow_encoder": "use tf.nn.embedding_lookup and tf.reduce_mean",
        "safe_embedding_lookup_sparse": "use tf.nn.safe_embedding_lookup_sparse",
        "embedding_lookup_unique": "use tf.unique and tf.nn.embedding_lookup",
        "regression_target": "use a head of tf.estimator",
        "feature_column": _COLUMNS,
        "input_from_feature_columns": "use tf.feature_column.input_layer",
        "parse_feature_columns_from_examples": "use tf.io.parse_example with tf.feature_column.make_parse_example_spec",
        **alike(
            "bucketized_column create_feature_spec_for_parsing crossed_column embedding_column joint_weighted_sum_from_feature_columns "
            "one_hot_column real_valued_column scattered_embedding_column sequence_input_from_feature_columns "
            "shared_embedding_columns sparse_column_with_hash_bucket sparse_column_with_integerized_feature "
            "sparse_column_with_keys sparse_column_with_vocabulary_file weighted_sparse_column "
            "weighted_sum_from_feature_columns",
            _COLUMNS,
        ),
    },
    private={
        "python.layers": "tf_slim.layers",
        "python.layers.layers": "tf_slim.layers.layers",
        "python.layers.initializers": "tf_slim.layers.initializers",
        "python.layers.normalization": "",
        "python.layers.optimizers": "tf_slim.layers.optimizers",
        "python.layers.regularizers": "tf_slim.layers.regularizers",
        "python.layers.summaries": "tf_slim.layers.summaries",
        "python.layers.utils": "tf_slim.layers.utils",
    },
    otherwise="use tf.layers, or what tf_slim.layers has",
)


@functools.cache
def layer_norm() -> Callable[..., Any]:
    """The function ``tf.contrib.layers.layer_norm``; one that ``arg_scope`` knows where tf_slim is installed."""
    if importlib.util.find_spec("tf_slim") is None:
        return _layer_norm
    import tf_slim

    return tf_slim.add_arg_scope(_layer_norm)


def _layer_norm(
    inputs: Any,
    center: bool = True,
    scale: bool = True,
    activation_fn: Callable[[Any], Any] | None = None,
    reuse: bool | None = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    begin_norm_axis: int = 1,
    begin_params_axis: int = -1,
    scope: Any = None,
) -> Any:
    """Normalise over the axes from ``begin_norm_axis`` on; ``beta`` and ``gamma`` have the axes from ``begin_params_axis`` on.

    Raises:
        ValueError: an unknown rank, or parameters of an unknown shape.
    """
    tf = tensorflow().compat.v1
    with tf.variable_scope(scope, "LayerNorm", [inputs], reuse=reuse) as found:
        inputs = tf.convert_to_tensor(inputs)
        rank = inputs.shape.ndims
        if rank is None:
            raise ValueError(f"layer_norm(inputs): {inputs.name} has no known rank, wanted one; use set_shape")
        shape = inputs.shape[begin_params_axis % rank :]
        if not shape.is_fully_defined():
            raise ValueError(
                f"layer_norm(inputs): {inputs.name} has the shape {inputs.shape}; wanted {shape} to be static"
            )

        def parameter(name: str, start: Any) -> Any:
            kept = variables_collections
            extra = (kept.get(name) if isinstance(kept, dict) else kept) or []
            return tf.get_variable(
                name,
                shape,
                inputs.dtype.base_dtype,
                initializer=start,
                trainable=trainable,
                collections=[tf.GraphKeys.GLOBAL_VARIABLES, tf.GraphKeys.MODEL_VARIABLES, *extra],
            )

        beta = parameter("beta", tf.zeros_initializer()) if center else None
        gamma = parameter("gamma", tf.ones_initializer()) if scale else None
        mean, variance = tf.nn.moments(inputs, list(range(begin_norm_axis % rank, rank)), keep_dims=True)
        tiny = 1e-3 if inputs.dtype.base_dtype == tf.float16 else 1e-12
        outputs = tf.nn.batch_normalization(inputs, mean, variance, beta, gamma, tiny)
        outputs.set_shape(inputs.shape)
        if activation_fn is not None:
            outputs = activation_fn(outputs)
        if outputs_collections:
            tf.add_to_collections(outputs_collections, outputs)
        del found
        return outputs
