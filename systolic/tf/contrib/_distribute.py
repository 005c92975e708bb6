"""``tf.contrib.distribute``, which is ``tf.distribute`` now."""

from __future__ import annotations

from systolic.tf.contrib._table import Table, alike, each

_NONE = "leave the strategy out: a TPUEstimator needs none"

TABLE = Table(
    served=each("tf:distribute.", "MirroredStrategy OneDeviceStrategy ReplicaContext get_replica_context get_strategy")
    | each("tf:distribute.", "has_strategy in_cross_replica_context get_loss_reduction")
    | {
        "CrossDeviceOps": "tf:distribute.CrossDeviceOps",
        "AllReduceCrossDeviceOps": "tensorflow.python.distribute.cross_device_ops:AllReduceCrossDeviceOps",
        "ReductionToOneDeviceCrossDeviceOps": "tf:distribute.ReductionToOneDevice",
        "DistributionStrategy": "tf:distribute.Strategy",
        "DistributeConfig": "tensorflow.python.distribute.distribute_config:DistributeConfig",
        "get_distribution_strategy": "tf:distribute.get_strategy",
        "has_distribution_strategy": "tf:distribute.has_strategy",
    },
    instead=alike("TPUStrategy ParameterServerStrategy CollectiveAllReduceStrategy", _NONE)
    | {"initialize_tpu_system": "use tf.tpu.initialize_system"},
    otherwise=_NONE,
)
