"""Modules of ``tf.contrib`` of which little is left, and what to use instead of all the rest."""

from __future__ import annotations

from collections.abc import Mapping

from systolic.tf.contrib._table import Table, each

_ESTIMATOR = "use tf.estimator"
_PLAIN = "it needs kernels of TensorFlow 1 that are no more"
_FEED = "read the data in the input function with tf.data.Dataset.from_generator"

SMALL: Mapping[str, Table] = {
    "autograph": Table(each("tf:autograph.", "to_graph to_code set_verbosity trace"), otherwise="use tf.autograph"),
    "eager": Table(
        each("tf:", "executing_eagerly py_function")
        | {"defun": "tensorflow:function", "function": "tensorflow:function", "Saver": "tf:train.Saver"},
        {"metrics": "use tf.keras.metrics", "Variable": "use tf.Variable", "Iterator": "iterate over the data set"},
        otherwise="a TPUEstimator builds graphs; use the native front end for eager code (docs/quickstart.md)",
    ),
    "estimator": Table(
        each("estimator:", "add_metrics RunConfig")
        | each("estimator:experimental.", "InMemoryEvaluatorHook build_raw_supervised_input_receiver_fn")
        | each("estimator:experimental.", "make_early_stopping_hook stop_if_higher_hook stop_if_lower_hook")
        | each("estimator:experimental.", "stop_if_no_decrease_hook stop_if_no_increase_hook")
        | {"binary_classification_head": "estimator:BinaryClassHead", "multi_class_head": "estimator:MultiClassHead"}
        | {"multi_label_head": "estimator:MultiLabelHead", "regression_head": "estimator:RegressionHead"},
        {
            "clip_gradients_by_norm": "use tf.clip_by_global_norm on the gradients",
            "forward_features": "add the features to the predictions in model_fn",
            "replicate_model_fn": "use a TPUEstimator, which replicates",
            "TowerOptimizer": "use tf.tpu.CrossShardOptimizer",
        },
        otherwise=_ESTIMATOR,
    ),
    "keras": Table(
        each("tf:keras.", "Input Model Sequential activations applications backend callbacks constraints datasets")
        | each("tf:keras.", "initializers layers losses metrics models optimizers preprocessing regularizers utils"),
        otherwise="use tf.keras",
    ),
    "learn": Table({}, {"RunConfig": "use tf.estimator.RunConfig"}, otherwise=_ESTIMATOR),
    "losses": Table(
        each(
            "tf_slim.losses:",
            "absolute_difference add_loss compute_weighted_loss cosine_distance get_losses hinge_loss",
        )
        | each("tf_slim.losses:", "get_regularization_losses get_total_loss log_loss mean_pairwise_squared_error")
        | each("tf_slim.losses:", "mean_squared_error sigmoid_cross_entropy softmax_cross_entropy")
        | each("tf_slim.losses:", "sparse_softmax_cross_entropy metric_learning"),
        private={
            "metric_learning": "tf_slim.losses.metric_learning",
            "python.losses": "",
            "python.losses.loss_ops": "",
        },
        otherwise="use tf.losses",
    ),
    "checkpoint": Table(
        {
            "CheckpointManager": "tf:train.CheckpointManager",
            "Checkpointable": "tensorflow:Module",
        },
        otherwise="use tf.train.Checkpoint",
    ),
    "nn": Table(
        each("tf:nn.", "conv1d_transpose") | {"nth_element": "tensorflow.python.ops.nn_ops:nth_element"},
        otherwise="use tf.nn",
    ),
    "quantization": Table(each("tf:quantization.", "fake_quant_with_min_max_vars fake_quant_with_min_max_args")),
    "saved_model": Table({}, otherwise="use tf.saved_model"),
    "signal": Table(
        each("tf:signal.", "frame mfccs_from_log_mel_spectrograms overlap_and_add stft inverse_stft"),
        otherwise="use tf.signal",
    ),
    "stateless": Table(
        {
            "stateless_random_uniform": "tf:random.stateless_uniform",
            "stateless_random_normal": "tf:random.stateless_normal",
            "stateless_truncated_normal": "tf:random.stateless_truncated_normal",
            "stateless_multinomial": "tf:random.stateless_multinomial",
        },
        otherwise="use the functions tf.random.stateless_…",
    ),
    "util": Table(
        each("tf:", "make_tensor_proto make_ndarray")
        | {"constant_value": "tensorflow.python.framework.tensor_util:constant_value"},
        otherwise="use tf.train and tf.graph_util",
    ),
    "deprecated": Table(
        {f"{name}_summary": f"tf:summary.{name}" for name in ("audio", "histogram", "image", "scalar")}
        | {"merge_summary": "tf:summary.merge", "merge_all_summaries": "tf:summary.merge_all"}
    ),
}

INSTEAD: Mapping[str, str] = {
    "all_reduce": "use tf.tpu.cross_replica_sum",
    "batching": "batch with tf.data, or in the server",
    "bayesflow": "use tensorflow_probability",
    "bigtable": _FEED,
    "boosted_trees": "use XGBoost or scikit-learn",
    "cloud": _FEED,
    "coder": _PLAIN,
    "compiler": "leave it out: steps are compiled with XLA anyway",
    "constrained_optimization": "write the penalty into the loss",
    "copy_graph": "use tf.import_graph_def",
    "crf": "write the recursion with tf.scan or tf.while_loop",
    "cudnn_rnn": "use tf.nn.rnn_cell.LSTMCell or GRUCell with tf.nn.dynamic_rnn: the kernels are of GPUs alone",
    "decision_trees": "use scikit-learn",
    "distributions": "use tf.distributions, or tensorflow_probability",
    "factorization": "use scikit-learn, or tf.matmul of two embeddings",
    "feature_column": "use tf.feature_column",
    "ffmpeg": "decode the files before, or with tf.audio.decode_wav in the input function",
    "fused_conv": "use tf.nn.conv2d, bias and activation: XLA fuses them",
    "gan": "use the package tensorflow-gan, or train both networks in one train_op",
    "graph_editor": "use tf.import_graph_def with an input_map",
    "grid_rnn": "write it as a subclass of tf.nn.rnn_cell.RNNCell",
    "hadoop": _FEED,
    "hooks": "use tf.train.ProfilerHook",
    "ignite": _FEED,
    "input_pipeline": "use tf.data",
    "integrate": "use scipy.integrate in the input function, or tf.while_loop",
    "kafka": _FEED,
    "kernel_methods": "write the map with tf.matmul and tf.cos",
    "kinesis": _FEED,
    "labeled_tensor": "use tf.Tensor",
    "legacy_seq2seq": "use tf.nn.dynamic_rnn",
    "libsvm": _FEED,
    "linear_optimizer": "use tf.train.FtrlOptimizer",
    "lite": "use tf.lite",
    "memory_stats": "use systolic check, which tells the memory of a step",
    "meta_graph_transform": "use tf.graph_util",
    "mixed_precision": "use tf.contrib.tpu.bfloat16_scope: bfloat16 needs no scaling of the loss",
    "model_pruning": "multiply the weights with a mask that is a variable",
    "nccl": "use tf.tpu.cross_replica_sum",
    "nearest_neighbor": "use tf.matmul and tf.nn.top_k",
    "optimizer_v2": "use tf.train",
    "periodic_resample": "use tf.reshape and tf.transpose",
    "predictor": "use tf.saved_model.load, or estimator.predict",
    "proto": "use tf.io.parse_example",
    "quantize": "use tf.quantization.fake_quant_with_min_max_vars",
    "rate": "count in Python",
    "receptive_field": "work it out by hand",
    "recurrent": "use tf.nn.dynamic_rnn",
    "reduce_slice_ops": "use tf.math.segment_sum",
    "remote_fused_graph": _PLAIN,
    "resampler": "write the interpolation with tf.gather_nd",
    "rpc": "call the service in the input function",
    "session_bundle": "use tf.saved_model",
    "solvers": "use tf.linalg",
    "sparsemax": "write it with tf.sort and tf.cumsum",
    "specs": "use tf.layers",
    "staging": "leave it out: batches are prefetched anyway",
    "stat_summarizer": "use tf.RunMetadata",
    "tensor_forest": "use scikit-learn",
    "tensorboard": "use the package tensorboard",
    "tensorrt": "use tf.experimental.tensorrt",
    "testing": "use tf.test",
    "text": "use the package tensorflow-text, in the input function",
    "tfprof": "use tf.profiler",
    "timeseries": _ESTIMATOR,
    "training_ops": "use tf.train",
    "verbs": "leave it out: there are no parameter servers",
}
