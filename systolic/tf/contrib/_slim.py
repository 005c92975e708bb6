"""``tf.contrib.slim``, which is the package tf_slim now."""

from __future__ import annotations

from systolic.tf.contrib._table import Table

_NETS = "alexnet inception inception_v1 inception_v2 inception_v3 overfeat resnet_utils resnet_v1 resnet_v2 vgg"

TABLE = Table(
    private={
        "": "tf_slim",
        "nets": "tf_slim.nets",
        **{f"nets.{name}": f"tf_slim.nets.{name}" for name in _NETS.split()},
        "python.slim": "tf_slim",
        "python.slim.nets": "tf_slim.nets",
        **{f"python.slim.nets.{name}": f"tf_slim.nets.{name}" for name in _NETS.split()},
        **{f"python.slim.{name}": f"tf_slim.{name}" for name in ("evaluation", "learning", "model_analyzer", "queues")},
        **{f"python.slim.data.{name}": f"tf_slim.data.{name}" for name in ("dataset", "dataset_data_provider")},
        "python.slim.data.tfexample_decoder": "tf_slim.data.tfexample_decoder",
    },
    otherwise="tf_slim, which it is now, has no such name",
)
