"""``tf.contrib.training``: HParams are ours, loops of evaluation and training are tf_slim's."""

from __future__ import annotations

from systolic.tf.contrib._table import Table, alike, each

_INPUT = "use tf.data"

TABLE = Table(
    served={
        "HParams": "systolic.tf.contrib._hparams:HParams",
        "parse_values": "systolic.tf.contrib._hparams:parse_values",
    }
    | each("tf:train.", "checkpoints_iterator")
    | {
        name: f"tensorflow.python.training.evaluation:_{before}"
        for name, before in {
            "evaluate_once": "evaluate_once",
            "get_or_create_eval_step": "get_or_create_eval_step",
            "StopAfterNEvalsHook": "StopAfterNEvalsHook",
        }.items()
    }
    | each("tf_slim.training.evaluation:", "SummaryAtEndHook evaluate_repeatedly wait_for_new_checkpoint")
    | each("tf_slim.training.training:", "add_gradients_summaries clip_gradient_norms clip_gradient_norms_fn")
    | each("tf_slim.training.training:", "create_train_op multiply_gradients train"),
    instead={
        "bucket": "use tf.data.experimental.bucket_by_sequence_length",
        "bucket_by_sequence_length": "use tf.data.experimental.bucket_by_sequence_length",
        "batch_sequences_with_states": _INPUT,
        "resample_at_rate": _INPUT,
        "rejection_sample": "use tf.data.experimental.rejection_resample",
        "stratified_sample": "use tf.data.experimental.rejection_resample",
        "weighted_resample": "use tf.data.experimental.rejection_resample",
        "FeedingQueueRunner": _INPUT,
        "NextQueuedSequenceBatch": _INPUT,
        "SequenceQueueingStateSaver": _INPUT,
        "GreedyLoadBalancingStrategy": "leave it out: there are no parameter servers",
        "RandomStrategy": "leave it out: there are no parameter servers",
        "byte_size_load_fn": "leave it out: there are no parameter servers",
    },
    private=alike("python.training python.training.evaluation python.training.hparam python.training.training", ""),
)
