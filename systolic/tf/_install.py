"""``systolic.tf.install()``: from here on, the user's files see TensorFlow 1, and TPUs are those of a target."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from systolic._errors import InputError
from systolic._source import is_users_file
from systolic.target import Target
from systolic.tf._estimator import estimator_api
from systolic.tf._names import Names, names_in_force
from systolic.tf._system import switch_on


def install(target: str | None = None, *, packages: Sequence[str] = (), loss: str = "mean") -> None:
    """Make scripts of TensorFlow 1 run, unmodified: to be called before they import TensorFlow.

    From here on ``import tensorflow as tf`` gives the names of TensorFlow 1.15 to the user's own files, ``tf.contrib`` and
    ``tf.estimator`` included; installed packages get TensorFlow as it is.

    Args:
        target: where the steps of a TPUEstimator run, as in ``"cpu:8"``; the default is the system's choice.
        packages: installed packages that are of TensorFlow 1, too, and are to see what the user's files see.
        loss: what TPUEstimator reports as loss: the ``"mean"`` over all replicas, or as it did itself, that of the ``"first"``
            replica alone.

    Raises:
        InputError: the calling file has imported TensorFlow already.
        TargetError: there is no such target.
    """
    if target is not None:
        Target(target)
    _refuse_late(sys._getframe(1).f_globals)
    if names_in_force() is None:
        Names(estimator_api, packages).enter()
    switch_on(target, loss=loss)


def _refuse_late(names: Mapping[str, Any]) -> None:
    real = sys.modules.get("tensorflow")
    file = names.get("__file__")
    if real is None or file is None or not is_users_file(str(file)):
        return
    for name, value in names.items():
        if value is real or value is getattr(getattr(real, "compat", None), "v1", None):
            raise InputError(
                f"systolic.tf.install(): {file} has imported TensorFlow before, as {name}; put 'import systolic.tf' and "
                "'systolic.tf.install()' above that"
            )
