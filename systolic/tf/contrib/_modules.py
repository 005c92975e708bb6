"""All modules of ``tf.contrib``, by name, and the objects that stand for them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from systolic.tf._face import Face, refuse
from systolic.tf.contrib._others import INSTEAD, SMALL
from systolic.tf.contrib._table import Table, found

_LARGE = (
    "cluster_resolver data distribute framework image layers lookup metrics opt rnn seq2seq slim summary tpu training"
)

MODULES = tuple(sorted([*_LARGE.split(), *SMALL, *INSTEAD]))
"""Names of all modules that TensorFlow 1.15 had; of some, nothing is served."""


def table(name: str) -> Table | None:
    """What one module serves, and what to use instead of the rest; None for one that TensorFlow 1.15 did not have."""
    if name in _LARGE.split():
        return importlib.import_module(f"systolic.tf.contrib._{name}").TABLE
    if name in INSTEAD:
        return Table(otherwise=INSTEAD[name])
    return SMALL.get(name)


class Contrib:
    """``tf.contrib``: makes each module when it is asked for, and keeps it.

    Args:
        estimator: gives the API of Estimators.
    """

    def __init__(self, estimator: Callable[[], Any]) -> None:
        self._estimator = estimator
        self._made: dict[str, Any] = {}
        self.face = Face("tensorflow.contrib", self._module, lambda: MODULES)

    def _module(self, name: str) -> Any:
        if name not in self._made:
            known = table(name)
            if known is None:
                raise refuse(f"tf.contrib.{name}", "TensorFlow 1.15 had no such module")
            self._made[name] = self._face(name, known, "")
        return self._made[name]

    def at(self, path: str) -> Any:
        """The module at a path below ``tf.contrib``, as in ``tpu.python.tpu.tpu_config``; also below a real package.

        Raises:
            NotServedError: there is none.
        """
        name, _, below = path.partition(".")
        known = table(name)
        if known is None or not below:
            return self._module(name)
        if below not in known.private:
            value = self._module(name)
            for part in below.split("."):
                value = getattr(value, part)
            return value
        return self._below(name, known, below)

    def _below(self, name: str, known: Table, path: str) -> Any:
        key = f"{name}.{path}"
        if key not in self._made:
            place = known.private.get(path, "")
            self._made[key] = found(place + ":", self._estimator) if place else self._face(name, known, path)
        return self._made[key]

    def _face(self, name: str, known: Table, path: str) -> Face:
        """A module, or a package below it: names of the table, and the packages further below."""
        full = ".".join(filter(None, (name, path)))

        def find(wanted: str) -> Any:
            if wanted in known.served:
                value = found(known.served[wanted], self._estimator)
                made.__dict__[wanted] = value
                return value
            below = ".".join(filter(None, (path, wanted)))
            if any(f"{p}.".startswith(f"{below}.") for p in known.private):
                return self._below(name, known, below)
            if place and hasattr(package := found(place + ":"), wanted):
                return getattr(package, wanted)
            raise refuse(f"tf.contrib.{full}.{wanted}", known.instead.get(wanted, known.otherwise))

        place = known.private[""] if "" in known.private and not path else ""
        made = Face(f"tensorflow.contrib.{full}", find, lambda: known.served)
        return made
