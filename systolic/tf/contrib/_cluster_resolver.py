"""``tf.contrib.cluster_resolver``: a TPU's resolver that asks no cloud, and those that read the environment."""

from __future__ import annotations

import functools
from typing import Any

from systolic.tf._tensorflow import tensorflow
from systolic.tf.contrib._table import Table, alike, each

_RESOLVERS = "tensorflow.python.distribute.cluster_resolver."

TABLE = Table(
    served=each("tf:distribute.cluster_resolver.", "ClusterResolver SimpleClusterResolver TFConfigClusterResolver")
    | {"UnionClusterResolver": "tf:distribute.cluster_resolver.UnionResolver"}
    | {"TPUClusterResolver": "systolic.tf.contrib._cluster_resolver:tpu_cluster_resolver()"},
    instead=alike(
        "GCEClusterResolver KubernetesClusterResolver SlurmClusterResolver",
        "leave the resolver out: the target is chosen by systolic.tf.install(target=…)",
    ),
    private=alike("python.training python.training.cluster_resolver python.training.tpu_cluster_resolver", ""),
)


@functools.cache
def tpu_cluster_resolver() -> Any:
    """The class ``TPUClusterResolver``: this process, whatever the name of the TPU."""
    base = tensorflow().distribute.cluster_resolver.ClusterResolver

    class TPUClusterResolver(base):  # type: ignore[misc,valid-type]
        """Answers as for a TPU of this machine; the name, zone and project of one in the cloud are kept, not asked."""

        task_type = None
        task_id = None
        rpc_layer = None
        environment = ""

        def __init__(
            self, tpu: Any = None, zone: str | None = None, project: str | None = None, *others: Any, **more: Any
        ) -> None:
            del others, more  # the names of jobs, and how a cloud is asked
            self.tpu, self.zone, self.project = tpu, zone, project

        def master(self, task_type: Any = None, task_id: Any = None, rpc_layer: Any = None) -> str:
            """No address: the session of this process."""
            return ""

        get_master = master

        def cluster_spec(self) -> None:
            """No cluster."""
            return None

        def get_job_name(self) -> str | None:
            """No job."""
            return None

        def num_accelerators(self, *arguments: Any, **more: Any) -> dict[str, int]:
            """As many as the session of this process says it has."""
            from tensorflow.python.client import session

            with tensorflow().Graph().as_default(), session.Session() as here:
                devices = [device.device_type for device in here.list_devices()]
            return {"TPU": devices.count("TPU")}

    return TPUClusterResolver
