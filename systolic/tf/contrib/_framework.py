"""``tf.contrib.framework``: argument scopes and variables from tf_slim, checkpoints and tests of tensors from TensorFlow."""

from __future__ import annotations

from systolic.tf.contrib._table import Table, alike, each

_OPS = "tensorflow.python.framework.ops:"
_SLIM = """add_arg_scope arg_scope arg_scoped_arguments current_arg_scope has_arg_scope add_model_variable
assert_or_get_global_step assign_from_checkpoint assign_from_checkpoint_fn assign_from_values assign_from_values_fn
filter_variables get_local_variables get_model_variables get_trainable_variables get_unique_variable get_variable_full_name
get_variables get_variables_by_name get_variables_by_suffix get_variables_to_restore global_variable local_variable
model_variable variable VariableDeviceChooser arg_scope_func_key
"""

TABLE = Table(
    served=each("tf_slim:", _SLIM)
    | each(
        "tf:",
        "nest argsort sort is_tensor is_non_decreasing is_numeric_tensor is_strictly_increasing py_func TensorSpec",
    )
    | each("tf:debugging.", "assert_same_float_dtype assert_scalar")
    | each("tf:train.", "assert_global_step create_global_step get_global_step get_or_create_global_step")
    | each("tf:train.", "init_from_checkpoint list_variables load_checkpoint load_variable")
    | each("tensorflow.python.framework.smart_cond:", "smart_case smart_cond smart_constant_value")
    | each("tensorflow.python.util.deprecation:", "deprecated deprecated_arg_values deprecated_args")
    | each(_OPS, "prepend_name_scope strip_name_scope")
    | {
        "get_graph_from_inputs": _OPS + "_get_graph_from_inputs",
        "remove_squeezable_dimensions": "tensorflow.python.ops.confusion_matrix:remove_squeezable_dimensions",
        "convolutional_delta_orthogonal": "tensorflow.python.ops.init_ops:convolutional_delta_orthogonal",
    },
    instead={
        "get_name_scope": "use tf.get_default_graph().get_name_scope()",
        "zero_initializer": "use tf.zeros_initializer",
        "with_shape": "use tf.ensure_shape",
        "with_same_shape": "use tf.ensure_shape",
        "reduce_sum_n": "use tf.add_n",
        "print_op": "use tf.Print",
        "assert_scalar_int": "use tf.debugging.assert_scalar and tf.debugging.assert_integer",
        "sparse_column": "use tf.feature_column",
        "experimental": "leave the decorator out",
        "load_and_remap_matrix": "use tf.train.init_from_checkpoint, or tf.estimator.WarmStartSettings",
        "load_embedding_initializer": "use tf.estimator.WarmStartSettings",
    },
    private=alike(
        "python.framework python.framework.checkpoint_utils python.framework.tensor_util python.ops python.ops.arg_scope "
        "python.ops.ops python.ops.sort_ops python.ops.variables",
        "",
    ),
)
