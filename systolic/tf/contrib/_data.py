"""``tf.contrib.data``, which is ``tf.data.experimental`` now, and three functions that are no more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from systolic.tf._tensorflow import tensorflow
from systolic.tf.contrib._table import Table, alike, each

_SAME = """AUTOTUNE Counter CsvDataset Optional RandomDataset Reducer SqlDataset TFRecordWriter bucket_by_sequence_length
choose_from_datasets copy_to_device dense_to_sparse_batch enumerate_dataset get_next_as_optional get_single_element
group_by_reducer group_by_window ignore_errors make_batched_features_dataset make_csv_dataset make_saveable_from_iterator
map_and_batch parallel_interleave parse_example_dataset prefetch_to_device rejection_resample sample_from_datasets scan
shuffle_and_repeat unbatch unique
"""
_OURS = "systolic.tf.contrib._data:"

TABLE = Table(
    served=each("tf:data.experimental.", _SAME)
    | each(_OURS, "batch_and_drop_remainder padded_batch_and_drop_remainder sloppy_interleave"),
    instead={
        "assert_element_shape": "use dataset.map with tf.ensure_shape",
        "reduce_dataset": "use dataset.reduce",
        "sliding_window_batch": "use dataset.window, flat_map and batch",
        "read_batch_features": "use tf.data.experimental.make_batched_features_dataset",
        "LMDBDataset": "read the files with tf.data.Dataset.from_generator",
        "CheckpointInputPipelineHook": "use tf.data.experimental.make_saveable_from_iterator",
        "Dataset": "use tf.data.Dataset",
        "Iterator": "use tf.data.Iterator",
        "TFRecordDataset": "use tf.data.TFRecordDataset",
        "TextLineDataset": "use tf.data.TextLineDataset",
        "FixedLengthRecordDataset": "use tf.data.FixedLengthRecordDataset",
    },
    private=alike(
        "python.ops python.ops.batching python.ops.interleave_ops python.ops.shuffle_ops python.ops.grouping",
        "",
    ),
)


def batch_and_drop_remainder(batch_size: Any) -> Callable[[Any], Any]:
    """For ``dataset.apply``: batches of exactly this size."""
    return lambda dataset: dataset.batch(batch_size, drop_remainder=True)


def padded_batch_and_drop_remainder(
    batch_size: Any, padded_shapes: Any, padding_values: Any = None
) -> Callable[[Any], Any]:
    """For ``dataset.apply``: padded batches of exactly this size."""
    return lambda dataset: dataset.padded_batch(batch_size, padded_shapes, padding_values, drop_remainder=True)


def sloppy_interleave(map_func: Callable[..., Any], cycle_length: int, block_length: int = 1) -> Callable[[Any], Any]:
    """For ``dataset.apply``: interleaved in any order."""
    interleave = tensorflow().compat.v1.data.experimental.parallel_interleave
    return interleave(map_func, cycle_length, block_length, sloppy=True)
