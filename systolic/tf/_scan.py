"""``systolic tf scan``: which names of TensorFlow a script uses, and which of them are served, without running it."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import pathlib
import types
import warnings
from collections.abc import Callable, Iterable
from typing import Any

from systolic._errors import InputError, NotServedError
from systolic.tf._aliases import alias
from systolic.tf._api import INSTEAD, Api
from systolic.tf._install import estimator_api
from systolic.tf._names import REAL
from systolic.tf._python2 import printing_line, syntax_problem
from systolic.tf._removed import REMOVED
from systolic.tf._uses import uses

_SKIPPED = ("site-packages", "dist-packages", "__pycache__", "node_modules")


@dataclasses.dataclass(frozen=True)
class Name:
    """A name that a file uses.

    Attributes:
        name: as in ``tf.contrib.tpu.TPUEstimator``.
        lines: where.
        instead: what to use in its place; empty for a name that is served.
    """

    name: str
    lines: tuple[int, ...]
    instead: str = ""


@dataclasses.dataclass(frozen=True)
class FileScan:
    """Of one file.

    Attributes:
        path: of the file.
        names: that it uses, sorted.
        problem: why it cannot be read, such as the syntax of Python 2; empty where it can.
        line: where that is.
    """

    path: pathlib.Path
    names: tuple[Name, ...] = ()
    problem: str = ""
    line: int = 0

    @property
    def missing(self) -> tuple[Name, ...]:
        """Names that are not served."""
        return tuple(name for name in self.names if name.instead)


@dataclasses.dataclass(frozen=True)
class ScanReport:
    """Of all files."""

    files: tuple[FileScan, ...]

    @property
    def exit_code(self) -> int:
        """0 where all is served, else 1."""
        return int(any(file.problem or file.missing for file in self.files))

    def to_json(self) -> dict[str, Any]:
        """For each file its names, with their lines, and what is in the way."""
        return {
            "exit_code": self.exit_code,
            "files": [
                {
                    "file": str(file.path),
                    "problem": {"line": file.line, "message": file.problem} if file.problem else None,
                    "served": {name.name: list(name.lines) for name in file.names if not name.instead},
                    "not_served": [
                        {"name": name.name, "lines": list(name.lines), "instead": name.instead} for name in file.missing
                    ],
                }
                for file in self.files
            ],
        }

    def __str__(self) -> str:
        told = []
        for file in self.files:
            if file.problem:
                told.append(f"{file.path}:{file.line}: {file.problem}")
            for name in file.missing:
                more = f" (and {len(name.lines) - 1} more)" if len(name.lines) > 1 else ""
                told.append(f"{file.path}:{name.lines[0]}: {name.name} is not served: {name.instead}{more}")
        all_names = {name.name: name.instead for file in self.files for name in file.names}
        missing = sum(map(bool, all_names.values()))
        unread = sum(bool(file.problem) for file in self.files)
        told.append(
            f"{_count(len(self.files), 'file')}, {_count(len(all_names), 'name')} of TensorFlow: "
            f"{len(all_names) - missing} served, {missing} not"
            + (f"; {_count(unread, 'file')} not read" if unread else "")
        )
        return "\n".join(told)


def scan(path: str | pathlib.Path, *, estimator: Callable[[], Any] = estimator_api) -> ScanReport:
    """Look through a Python file, or all of a folder; nothing of it is run.

    Args:
        path: of the file or folder.
        estimator: gives the module that ``tf.estimator`` is.

    Raises:
        InputError: there is no such file, no Python in it, or no TensorFlow to compare with.
    """
    place = pathlib.Path(path).expanduser()
    if place.is_dir():
        files = sorted(f for f in place.rglob("*.py") if not _skipped(f.relative_to(place).parts))
        if not files:
            raise InputError(f"scan(path): there is no Python file in {path}; name the folder of a script")
    elif place.is_file():
        files = [place]
    else:
        raise InputError(f"scan(path): there is no file or folder {path}")
    served = _Served(Api(estimator))
    return ScanReport(tuple(_scan_file(file, served) for file in files))


def _scan_file(file: pathlib.Path, served: _Served) -> FileScan:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of strings in the user's file
            tree = ast.parse(file.read_bytes(), str(file))
    except SyntaxError as error:
        return FileScan(file, problem=syntax_problem(error), line=error.lineno or 1)
    except (OSError, ValueError) as error:
        return FileScan(file, problem=f"cannot be read ({error})", line=1)
    if (line := printing_line(tree)) is not None:
        return FileScan(
            file, problem="the syntax of Python 2 (print >>file); convert the file, as with 2to3", line=line
        )
    lines: dict[str, tuple[str, list[int]]] = {}
    for dotted, line in uses(tree, served.is_module):
        name, instead = served.look(dotted)
        lines.setdefault(name, (instead, []))[1].append(line)
    return FileScan(
        file, tuple(Name(name, tuple(dict.fromkeys(at)), instead) for name, (instead, at) in sorted(lines.items()))
    )


class _Served:
    """Looks names up in what scripts will see."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._known: dict[str, tuple[str, str, Any]] = {}

    def look(self, dotted: str) -> tuple[str, str]:
        """A name as the user knows it, up to the first that is no module; and what to use instead, if it is not served."""
        return self._look(dotted)[:2]

    def is_module(self, dotted: str) -> bool:
        """Whether a name is that of a module."""
        name, instead, value = self._look(dotted)
        return not instead and isinstance(value, types.ModuleType) and name.count(".") == dotted.count(".")

    def _look(self, dotted: str) -> tuple[str, str, Any]:
        if dotted not in self._known:
            self._known[dotted] = self._walk(dotted.split(".")[1:])
        return self._known[dotted]

    def _walk(self, parts: list[str]) -> tuple[str, str, Any]:
        value: Any = self._api.tf()
        at = 0
        if parts[:1] and parts[0] in REAL:
            value, at = self._imported(parts)
        while at < len(parts) and isinstance(value, types.ModuleType):
            name = _called(parts[: at + 1])
            try:
                value = getattr(value, parts[at])
            except NotServedError as error:
                return name, str(error).partition(" is not served: ")[2], None
            except AttributeError:
                if parts[at] in REMOVED.get(".".join(["tensorflow", *parts[:at]]), {}):
                    return name, "", None  # found again where the script runs
                advice = INSTEAD.get(
                    ".".join(parts[: at + 1]), "this TensorFlow has no such name; look for a public one"
                )
                return name, advice, None
            except ImportError as error:
                return name, f"TensorFlow cannot load it ({error}); look for another name of it", None
            at += 1
        return _called(parts[:at]), "", value

    def _imported(self, parts: list[str]) -> tuple[Any, int]:
        """The module that a path begins with, and how much of the path it is."""
        module, at = None, 0
        for end in range(1, len(parts) + 1):
            name = ".".join(["tensorflow", *parts[:end]])
            try:
                alias(name, (), self._api.estimator)
                module, at = importlib.import_module(name), end
            except (ImportError, NotServedError):
                break
        return (self._api.tf(), 0) if module is None else (module, at)


def _called(parts: list[str]) -> str:
    """As users write it: what is private by its whole path."""
    return ".".join(["tensorflow" if parts[:1] and parts[0] in REAL else "tf", *parts])


def _skipped(parts: Iterable[str]) -> bool:
    return any(part.startswith(".") or part in _SKIPPED for part in parts)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")
