"""What ``import tensorflow as tf`` gives to a script of TensorFlow 1: its API, with what is gone since put back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from systolic.tf._aliases import mend
from systolic.tf._face import Face, over, refuse
from systolic.tf._tensorflow import tensorflow
from systolic.tf.contrib import Contrib

VERSION = "1.15.0"
"""What scripts see, which compare it."""

INSTEAD = {
    "tpu.experimental.AdagradParameters": "TPU embeddings are not served yet; use tf.nn.embedding_lookup",
    "tpu.experimental.AdamParameters": "TPU embeddings are not served yet; use tf.nn.embedding_lookup",
    "tpu.experimental.StochasticGradientDescentParameters": "TPU embeddings are not served yet; use tf.nn.embedding_lookup",
    "data.experimental.StatsAggregator": "leave it out: TensorFlow has dropped it",
    "data.experimental.StatsOptions": "leave it out: TensorFlow has dropped it",
    "data.experimental.MapVectorizationOptions": "leave it out: TensorFlow has dropped it",
    "data.experimental.bytes_produced_stats": "leave it out: TensorFlow has dropped it",
    "data.experimental.latency_stats": "leave it out: TensorFlow has dropped it",
    "data.experimental.CheckpointInputPipelineHook": "use tf.data.experimental.make_saveable_from_iterator",
    "config.experimental_list_devices": "use tf.config.list_physical_devices",
    "lite.experimental.nn": "use tf.nn.rnn_cell.LSTMCell",
}
"""Names of TensorFlow 1.15 that are no more, below ``tf``."""


class Api:
    """The modules ``tf``, ``tf.compat``, ``tf.compat.v1``, ``tf.contrib`` and so on.

    Args:
        estimator: gives the module that ``tf.estimator`` is to be.
    """

    def __init__(self, estimator: Callable[[], Any]) -> None:
        self._load = estimator
        self._estimator: Any = None
        self._tf: Face | None = None
        self.contrib = Contrib(self.estimator)

    @property
    def loaded(self) -> bool:
        """Whether anybody has asked for it yet."""
        return self._tf is not None

    def estimator(self) -> Any:
        """``tf.estimator``.

        Raises:
            NotServedError: its package is not installed.
        """
        if self._estimator is None:
            try:
                self._estimator = self._load()
            except ImportError as error:
                raise refuse(
                    "tf.estimator", f"pip install tensorflow-estimator==2.15.0, which cannot be imported ({error})"
                ) from error
        return self._estimator

    def tf(self) -> Face:
        """``tf``, which is also ``tf.compat.v1``."""
        if self._tf is None:
            self._tf = self._make()
        return self._tf

    def _make(self) -> Face:
        real = tensorflow()
        mend()
        old = real.compat.v1
        resolvers = over(
            "tensorflow.distribute.cluster_resolver",
            lambda: old.distribute.cluster_resolver,
            {"TPUClusterResolver": lambda: self.contrib.face.cluster_resolver.TPUClusterResolver},
        )
        distribute = over("tensorflow.distribute", lambda: old.distribute, {"cluster_resolver": lambda: resolvers})
        others: dict[str, Callable[[], Any]] = {
            "contrib": lambda: self.contrib.face,
            "estimator": self.estimator,
            "distribute": lambda: distribute,
            "version": lambda: version,
            "VERSION": lambda: VERSION,
            "compat": lambda: compat,
        }

        def find(name: str) -> Any:
            if name in others:
                return others[name]()
            for module in (old, real):  # what 1.15 did not have yet does no harm
                if hasattr(module, name):
                    return getattr(module, name)
            raise refuse(f"tf.{name}", INSTEAD.get(name, "TensorFlow has no such name"))

        tf = Face("tensorflow", find, lambda: {*(n for n in dir(old) if not n.startswith("_")), *others})
        version = over("tensorflow.version", lambda: old.version, {"VERSION": lambda: VERSION})
        compat = over("tensorflow.compat", lambda: real.compat, {"v1": lambda: tf})
        tf.__dict__.update(
            __version__=VERSION,
            __file__=real.__file__,
            __path__=real.__path__,
            __spec__=real.__spec__,
            __git_version__=real.__git_version__,
        )
        return tf
