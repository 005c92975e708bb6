"""Modules that stand in front of others: each name is looked up when it is asked for, or refused with advice."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from typing import Any

from systolic._errors import NotServedError


class Face(types.ModuleType):
    """A module whose names come from a function.

    Args:
        name: of the module that it looks like, as in ``tensorflow.contrib.tpu``.
        find: gives what a name stands for; :class:`NotServedError` or ``AttributeError`` where it stands for nothing.
        listed: the names for ``dir()`` and ``from … import *``.
    """

    def __init__(self, name: str, find: Callable[[str], Any], listed: Callable[[], Iterable[str]] = tuple) -> None:
        super().__init__(name)
        self.__path__: list[str] = []  # it looks like a package: names below it may be imported
        self.__dict__.update(_find=find, _listed=listed)

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":
            return sorted(self.__dict__["_listed"]())
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return self.__dict__["_find"](name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.__dict__["_listed"]()})


def over(name: str, behind: Callable[[], Any], others: dict[str, Callable[[], Any]]) -> Face:
    """A module with some names replaced.

    Args:
        name: of the module.
        behind: gives the module that has all other names.
        others: what gives each of the replaced names.
    """

    def find(wanted: str) -> Any:
        return others[wanted]() if wanted in others else getattr(behind(), wanted)

    return Face(name, find, lambda: {*(n for n in dir(behind()) if not n.startswith("_")), *others})


def refuse(name: str, advice: str) -> NotServedError:
    """The error for a name that nobody serves; ``advice`` is what to do instead.

    Example:
        >>> print(refuse("tf.contrib.ffmpeg", "decode the files in the input function"))
        tf.contrib.ffmpeg is not served: decode the files in the input function
    """
    error = NotServedError(f"{name} is not served: {advice}")
    error.name = name.rpartition(".")[2]
    return error
