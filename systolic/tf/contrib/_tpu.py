"""``tf.contrib.tpu``: TPUEstimator, and the low-level functions for TPUs."""

from __future__ import annotations

from systolic.tf.contrib._table import Table, each

_ESTIMATOR = "tensorflow_estimator.python.estimator.tpu."
_TPU = "tensorflow.python.tpu."

TABLE = Table(
    served=each(_ESTIMATOR + "tpu_config:", "InputPipelineConfig RunConfig TPUConfig")
    | each(_ESTIMATOR + "tpu_estimator:", "TPUEstimator TPUEstimatorSpec export_estimator_savedmodel")
    | each("tf:tpu.", "CrossShardOptimizer batch_parallel bfloat16_scope core cross_replica_sum initialize_system")
    | each("tf:tpu.", "outside_compilation replicate rewrite shard shutdown_system PaddingSpec")
    | each("tf:tpu.experimental.", "DeviceAssignment Topology")
    | each(_TPU + "device_assignment:", "device_assignment")
    | each(_TPU + "ops.tpu_ops:", "collective_permute all_to_all infeed_dequeue infeed_dequeue_tuple")
    | each(_TPU + "ops.tpu_ops:", "infeed_enqueue infeed_enqueue_tuple outfeed_dequeue outfeed_dequeue_tuple")
    | each(_TPU + "ops.tpu_ops:", "outfeed_enqueue outfeed_enqueue_tuple")
    | each(_TPU + "tpu_feed:", "InfeedQueue")
    | each(_TPU + "training_loop:", "repeat while_loop")
    | {"AsyncCheckpointSaverHook": "tf:train.CheckpointSaverHook"},  # the same arguments; it saves before it goes on
    instead={
        "keras_to_tpu_model": "use a TPUEstimator, or a model of the native front end (docs/quickstart.md)",
        "TPUDistributionStrategy": "use a TPUEstimator, which needs no strategy",
        "TPUInMemoryEvalHook": "use tf.estimator.experimental.InMemoryEvaluatorHook, or tf.estimator.train_and_evaluate",
        "profiler": "use jax.profiler, or tf.train.ProfilerHook",
    },
    private={
        **{
            f"python.tpu.{name}": _ESTIMATOR + name
            for name in ("tpu_config", "tpu_context", "tpu_estimator", "error_handling", "util")
        },
        **{
            f"python.tpu.{name}": _TPU + name
            for name in ("tpu", "tpu_function", "tpu_feed", "tpu_optimizer", "tpu_sharding", "tpu_system_metadata")
        },
        **{
            f"python.tpu.{name}": _TPU + name
            for name in ("bfloat16", "device_assignment", "feature_column", "functional", "topology", "training_loop")
        },
        **{f"python.tpu.{name}": _TPU + name for name in ("session_support", "tensor_tracer", "tpu_embedding")},
        **{
            f"proto.{name}_pb2": f"tensorflow.core.protobuf.tpu.{name}_pb2"
            for name in ("compilation_result", "dynamic_padding", "optimization_parameters", "topology")
        },
        "proto.tpu_embedding_configuration_pb2": "tensorflow.core.protobuf.tpu.tpu_embedding_configuration_pb2",
        "python.tpu.datasets": _TPU + "datasets",
        "python.tpu.async_checkpoint": "",
        "python.ops.tpu_ops": _TPU + "ops.tpu_ops",
    },
    otherwise="tf.contrib.tpu had no such name in TensorFlow 1.15; see docs/tensorflow.md for what it serves",
)
