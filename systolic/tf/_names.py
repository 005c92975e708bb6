"""The names of TensorFlow 1, for the user's files alone: libraries that import TensorFlow get it as it is.

Whose an import is, its globals tell: the file that they belong to.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from systolic._errors import NotServedError, NotServedImportError
from systolic._source import is_users_file
from systolic.tf._aliases import alias
from systolic.tf._api import Api
from systolic.tf._face import Face
from systolic.tf._removed import REMOVED, revive

_TOP = "tensorflow"
REAL = ("python", "core", "compiler", "tools", "tsl", "include", "security")
"""Packages of TensorFlow whose modules are imported as they are."""


_OLD = ("tf_slim", "tensorflow_estimator")
"""Packages that get TensorFlow as it is, and count on names that it has dropped."""


class Names:
    """Answers the user's imports; in force from :meth:`enter` to :meth:`leave`.

    Args:
        estimator: gives the module that ``tf.estimator`` is to be; called when it is first asked for.
        packages: names of installed packages that are to see what the user's files see.
    """

    def __init__(self, estimator: Callable[[], Any], packages: Sequence[str] = ()) -> None:
        self.api = Api(estimator)
        self._packages = frozenset(packages)
        self._undo: list[Callable[[], None]] = []

    def users(self, names: Mapping[str, Any]) -> bool:
        """Whether these globals are those of a file of the user's, or of a prompt or notebook."""
        name = str(names.get("__name__", ""))
        if name.partition(".")[0] in self._packages:
            return True
        file = names.get("__file__") or getattr(names.get("__spec__"), "origin", None)
        return name == "__main__" if file is None else is_users_file(str(file))

    def _old(self, names: Mapping[str, Any]) -> bool:
        return self.users(names) or str(names.get("__name__", "")).partition(".")[0] in _OLD

    def enter(self) -> None:
        """Take over ``import``, and bring back what Python and NumPy have dropped."""
        plain, plain_module = builtins.__import__, importlib.import_module

        def __import__(
            name: str,
            globals: Mapping[str, Any] | None = None,
            locals: Mapping[str, Any] | None = None,
            fromlist: Sequence[str] | None = (),
            level: int = 0,
        ) -> Any:
            if level == 0 and name.partition(".")[0] == _TOP:
                given = sys._getframe(1).f_globals if globals is None else globals
                if self.users(given):
                    return self._answer(name, fromlist or (), plain)
            return plain(name, globals, locals, fromlist, level)

        def import_module(name: str, package: str | None = None) -> Any:
            if name.partition(".")[0] == _TOP and self.users(sys._getframe(1).f_globals):
                return self._answer(name, ("",), plain)
            return plain_module(name, package)

        __import__.names = self  # type: ignore[attr-defined]
        builtins.__import__ = __import__  # type: ignore[assignment]
        importlib.import_module = import_module

        def restore() -> None:
            builtins.__import__, importlib.import_module = plain, plain_module

        self._undo.append(restore)
        self._undo += [revive(name, self._old) for name in REMOVED if not name.startswith(_TOP)]

    def leave(self) -> None:
        """Undo :meth:`enter`."""
        while self._undo:
            self._undo.pop()()

    def _answer(self, name: str, wanted: Sequence[str], plain: Callable[..., Any]) -> Any:
        """What ``import name`` gives, or, with ``wanted``, ``from name import wanted``."""
        first = not self.api.loaded
        tf = self.api.tf()
        if first:
            tf.disable_v2_behavior()  # graphs, and dimensions with a value, as 1.15 had them
            self._undo += [revive(module, self._old) for module in REMOVED if module.startswith(_TOP)]
        below = name.split(".")[1:]
        if below and below[0] in REAL:
            alias(name, wanted, self.api.estimator)
            return _real(name, wanted, plain) if wanted else plain(name) and tf
        try:
            module = self._walk(tf, below)
        except NotServedError as error:
            raise _refused(error, name) from None
        if module is None:  # a module of TensorFlow that its API does not name
            module = _real(name, wanted, plain)
        elif isinstance(module, Face):
            _check(module, wanted)
        elif any(one and one != "*" and not hasattr(module, one) for one in wanted):
            with contextlib.suppress(ImportError):  # told by what Python makes of the missing name
                _real(module.__name__, wanted, plain)
        return module if wanted else tf

    def _walk(self, tf: Any, below: Sequence[str]) -> Any:
        if below[:1] == ["contrib"] and len(below) > 1:
            return self.api.contrib.at(".".join(below[1:]))
        value = tf
        for part in below:
            try:
                value = getattr(value, part)
            except NotServedError:
                raise
            except AttributeError:
                return None
        return value


def _real(name: str, wanted: Sequence[str], plain: Callable[..., Any]) -> Any:
    """The module, and its modules that are wanted, as Python imports them."""
    plain(name, None, None, tuple(filter(None, wanted)), 0)
    return sys.modules[name]


def _check(module: Face, wanted: Sequence[str]) -> None:
    """Python would turn a name that is refused into an ImportError that says nothing."""
    for one in wanted:
        if one and one != "*":
            try:
                getattr(module, one)
            except NotServedError as error:
                raise _refused(error, module.__name__) from None


def _refused(error: NotServedError, name: str) -> NotServedImportError:
    refused = NotServedImportError(str(error))
    refused.name = name
    return refused


@contextlib.contextmanager
def names(estimator: Callable[[], Any], packages: Sequence[str] = ()) -> Iterator[Names]:
    """The names in force in the body."""
    made = Names(estimator, packages)
    made.enter()
    try:
        yield made
    finally:
        made.leave()


def names_in_force() -> Names | None:
    """Those that answer imports now."""
    return getattr(builtins.__import__, "names", None)
