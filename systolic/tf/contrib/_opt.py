"""``tf.contrib.opt``: optimizers with decoupled weight decay, lazy Adam, LARS."""

from __future__ import annotations

from systolic.tf.contrib._table import Table, alike

_OURS = "systolic.tf.contrib."
_OWN = "write it as a subclass of tf.train.Optimizer"

TABLE = Table(
    served={
        "AdamWOptimizer": _OURS + "_weight_decay:adam_w()",
        "MomentumWOptimizer": _OURS + "_weight_decay:momentum_w()",
        "DecoupledWeightDecayExtension": _OURS + "_weight_decay:DecoupledWeightDecayExtension",
        "extend_with_decoupled_weight_decay": _OURS + "_weight_decay:extend_with_decoupled_weight_decay",
        "LazyAdamOptimizer": _OURS + "_optimizers:lazy_adam()",
        "LARSOptimizer": _OURS + "_optimizers:lars()",
        "clip_gradients_by_global_norm": _OURS + "_optimizers:clip_gradients_by_global_norm",
    },
    instead={
        "MovingAverageOptimizer": "use tf.train.ExponentialMovingAverage after the optimizer",
        "VariableClippingOptimizer": "use tf.clip_by_norm on the gradients",
        "NadamOptimizer": "use tf.train.AdamOptimizer",
        "AdaMaxOptimizer": "use tf.train.AdamOptimizer",
        "ScipyOptimizerInterface": "call scipy.optimize with a session of your own",
        "ExternalOptimizerInterface": "call the other optimizer with a session of your own",
        "MultitaskOptimizerWrapper": "use one loss that is the sum of the tasks'",
        **alike(
            "DropStaleGradientOptimizer DelayCompensatedGradientDescentOptimizer ElasticAverageOptimizer "
            "ElasticAverageCustomGetter AGNOptimizer AGNCustomGetter ModelAverageOptimizer ModelAverageCustomGetter",
            "leave it out: replicas of a TPU are in step, use tf.tpu.CrossShardOptimizer",
        ),
    },
    private=alike(
        "python.training python.training.weight_decay_optimizers python.training.lazy_adam_optimizer "
        "python.training.lars_optimizer",
        "",
    ),
    otherwise=_OWN,
)
