"""``tf.contrib.rnn``: the cells and loops that TensorFlow itself has, and the fused cell as a plain one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from systolic.tf._tensorflow import tensorflow
from systolic.tf.contrib._table import Table, alike, each

_CELLS = """BasicLSTMCell BasicRNNCell DeviceWrapper DropoutWrapper GRUCell LSTMCell LSTMStateTuple MultiRNNCell RNNCell
ResidualWrapper
"""
_LSTM = "use tf.nn.rnn_cell.LSTMCell"

TABLE = Table(
    served=each("tf:nn.rnn_cell.", _CELLS)
    | each("tf:nn.", "static_bidirectional_rnn static_rnn static_state_saving_rnn")
    | each("systolic.tf.contrib._rnn:", "LSTMBlockCell stack_bidirectional_dynamic_rnn")
    | {name: f"tensorflow.python.ops.rnn:_{name}" for name in ("transpose_batch_time", "best_effort_input_batch_size")},
    instead={
        "LSTMBlockFusedCell": "use tf.nn.dynamic_rnn with tf.nn.rnn_cell.LSTMCell, time_major=True",
        "LSTMBlockWrapper": _LSTM,
        "GRUBlockCell": "use tf.nn.rnn_cell.GRUCell",
        "GRUBlockCellV2": "use tf.nn.rnn_cell.GRUCell",
        "LayerNormBasicLSTMCell": "use tf.nn.rnn_cell.LSTMCell with tf.contrib.layers.layer_norm on its inputs",
        "LayerNormLSTMCell": "use tf.nn.rnn_cell.LSTMCell with tf.contrib.layers.layer_norm on its inputs",
        "EmbeddingWrapper": "use tf.nn.embedding_lookup before the cell",
        "InputProjectionWrapper": "use tf.layers.dense before the cell",
        "OutputProjectionWrapper": "use tf.layers.dense after the cell",
        "stack_bidirectional_rnn": "use tf.contrib.rnn.stack_bidirectional_dynamic_rnn",
        "FusedRNNCell": "use tf.nn.dynamic_rnn",
        "FusedRNNCellAdaptor": "use tf.nn.dynamic_rnn",
        "TimeReversedFusedRNN": "use tf.reverse_sequence and tf.nn.dynamic_rnn",
        **alike(
            "CoupledInputForgetGateLSTMCell TimeFreqLSTMCell GridLSTMCell BidirectionalGridLSTMCell PhasedLSTMCell GLSTMCell "
            "WeightNormLSTMCell NASCell UGRNNCell IntersectionRNNCell SRUCell IndRNNCell IndyGRUCell IndyLSTMCell NTMCell "
            "MinimalRNNCell CFNCell AttentionCellWrapper HighwayWrapper CompiledWrapper",
            "write it as a subclass of tf.nn.rnn_cell.RNNCell",
        ),
        **alike("ConvLSTMCell Conv1DLSTMCell Conv2DLSTMCell Conv3DLSTMCell", "use tf.keras.layers.ConvLSTM2D"),
    },
    private=alike(
        "python.ops python.ops.core_rnn python.ops.core_rnn_cell python.ops.lstm_ops python.ops.rnn python.ops.rnn_cell",
        "",
    ),
)


def LSTMBlockCell(  # a class in TensorFlow 1
    num_units: int,
    forget_bias: float = 1.0,
    cell_clip: float | None = None,
    use_peephole: bool = False,
    dtype: Any = None,
    reuse: bool | None = None,
    name: str = "lstm_cell",
) -> Any:
    """The plain cell with the same variables: XLA fuses it, and does not know the kernel of the fused one."""
    return tensorflow().compat.v1.nn.rnn_cell.LSTMCell(
        num_units,
        use_peepholes=use_peephole,
        cell_clip=None if cell_clip is None or cell_clip < 0 else cell_clip,
        forget_bias=forget_bias,
        reuse=reuse,
        name=name,
        dtype=dtype,
    )


def stack_bidirectional_dynamic_rnn(
    cells_fw: Sequence[Any],
    cells_bw: Sequence[Any],
    inputs: Any,
    initial_states_fw: Sequence[Any] | None = None,
    initial_states_bw: Sequence[Any] | None = None,
    dtype: Any = None,
    sequence_length: Any = None,
    parallel_iterations: int | None = None,
    time_major: bool = False,
    scope: Any = None,
    swap_memory: bool = False,
) -> tuple[Any, tuple[Any, ...], tuple[Any, ...]]:
    """Layers of bidirectional networks, each fed with both outputs of the one below.

    Returns:
        Outputs of the last layer, forward and backward ones along the last axis; final states of each layer forward;
        and backward.

    Raises:
        ValueError: no cells, or as many forward as backward ones are not given.
    """
    if not cells_fw or len(cells_fw) != len(cells_bw):
        raise ValueError(
            f"stack_bidirectional_dynamic_rnn(cells_fw, cells_bw): saw {len(cells_fw)} and {len(cells_bw)} cells, wanted as "
            "many of one as of the other, and at least one"
        )
    tf = tensorflow().compat.v1
    forward, backward = [], []
    with tf.variable_scope(scope or "stack_bidirectional_rnn"):
        for i, (cell_fw, cell_bw) in enumerate(zip(cells_fw, cells_bw, strict=True)):
            with tf.variable_scope(f"cell_{i}"):
                outputs, (state_fw, state_bw) = tf.nn.bidirectional_dynamic_rnn(
                    cell_fw,
                    cell_bw,
                    inputs,
                    initial_state_fw=None if initial_states_fw is None else initial_states_fw[i],
                    initial_state_bw=None if initial_states_bw is None else initial_states_bw[i],
                    sequence_length=sequence_length,
                    dtype=dtype,
                    parallel_iterations=parallel_iterations,
                    swap_memory=swap_memory,
                    time_major=time_major,
                )
                inputs = tf.concat(outputs, 2)
                forward.append(state_fw)
                backward.append(state_bw)
    return inputs, tuple(forward), tuple(backward)
