"""``HParams``: named values with types, which text, a dict or JSON may override."""

from __future__ import annotations

import json
import numbers
import re
from collections.abc import Callable, Mapping
from typing import Any

from systolic._errors import InputError

_ASSIGNMENT = re.compile(
    r"\s*(?P<name>[A-Za-z][\w.]*)\s*(?:\[\s*(?P<index>\d+)\s*\])?\s*=\s*(?:\[(?P<list>[^\]]*)\]|(?P<value>[^,\[]*))(?:,|$)"
)
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


class HParams:
    """Hyperparameters: attributes of this object.

    Each value, or each item of a list, has the type that it had first; what overrides it is brought to that type, or
    refused.

    Example:
        >>> params = HParams(rate=0.1, layers=[64, 64], name="small")
        >>> params.parse("rate=0.5,layers=[32],name=tiny").values()
        {'rate': 0.5, 'layers': [32], 'name': 'tiny'}
    """

    def __init__(self, hparam_def: Any = None, model_structure: Any = None, **kwargs: Any) -> None:
        if hparam_def is not None:
            raise InputError("HParams(hparam_def): saw a protocol buffer, wanted names and values: HParams(rate=0.1)")
        self._hparam_types: dict[str, tuple[type, bool]] = {}
        self._model_structure = model_structure
        for name, value in kwargs.items():
            self.add_hparam(name, value)

    def add_hparam(self, name: str, value: Any) -> None:
        """A new one.

        Raises:
            InputError: the name is taken, or the value an empty list, whose items have no type.
        """
        if getattr(self, name, None) is not None or name in self._hparam_types:
            raise InputError(f"HParams({name}): the name is taken; choose another one, or set it with set_hparam")
        if isinstance(value, list | tuple):
            if not value:
                raise InputError(f"HParams({name}): saw an empty list, wanted an item, which says its type")
            self._hparam_types[name] = (type(value[0]), True)
        else:
            self._hparam_types[name] = (type(value), False)
        setattr(self, name, value)

    def set_hparam(self, name: str, value: Any) -> None:
        """A new value of one that there is.

        Raises:
            InputError: there is none, or the value is of another type.
        """
        kind, many = self._type(name)
        if isinstance(value, list | tuple) != many:
            raise InputError(f"HParams({name}): saw {value!r}, wanted {'a list' if many else 'one value'}")
        setattr(self, name, [_cast(name, kind, item) for item in value] if many else _cast(name, kind, value))

    def del_hparam(self, name: str) -> None:
        """Forget one."""
        if name in self._hparam_types:
            delattr(self, name)
            del self._hparam_types[name]

    def parse(self, values: str) -> HParams:
        """Override from text as in ``rate=0.5,layers=[32,16],layers[0]=64``; returns this object.

        Raises:
            InputError: the text does not read so, or names what there is not.
        """
        kinds = {name: kind for name, (kind, _) in self._hparam_types.items()}
        for name, value in parse_values(values, kinds).items():
            if isinstance(value, dict):  # some items of a list
                items = list(getattr(self, name))
                for index, item in value.items():
                    if index >= len(items):
                        raise InputError(f"HParams.parse: saw {name}[{index}], of a list with {len(items)} items")
                    items[index] = item
                value = items
            self.set_hparam(name, value)
        return self

    def override_from_dict(self, values_dict: Mapping[str, Any]) -> HParams:
        """Override from a dict; returns this object."""
        for name, value in values_dict.items():
            self.set_hparam(name, value)
        return self

    def parse_json(self, values_json: str) -> HParams:
        """Override from a JSON object; returns this object."""
        return self.override_from_dict(json.loads(values_json))

    def to_json(self, indent: Any = None, separators: Any = None, sort_keys: bool = False) -> str:
        """A JSON object of all values but functions."""
        kept = {name: value for name, value in self.values().items() if not callable(value)}
        return json.dumps(kept, indent=indent, separators=separators, sort_keys=sort_keys)

    def values(self) -> dict[str, Any]:
        """Names and values."""
        return {name: getattr(self, name) for name in self._hparam_types}

    def get(self, key: str, default: Any = None) -> Any:
        """The value, or ``default`` where there is none."""
        return getattr(self, key) if key in self._hparam_types else default

    def set_model_structure(self, model_structure: Any) -> None:
        """Keep an object beside the values."""
        self._model_structure = model_structure

    def get_model_structure(self) -> Any:
        """That object."""
        return self._model_structure

    def __contains__(self, key: str) -> bool:
        return key in self._hparam_types

    def __str__(self) -> str:
        return str(sorted(self.values().items()))

    def __repr__(self) -> str:
        return f"HParams({self})"

    def _type(self, name: str) -> tuple[type, bool]:
        if name not in self._hparam_types:
            raise InputError(f"HParams: there is no {name!r}; there are {', '.join(self._hparam_types) or 'none'}")
        return self._hparam_types[name]


def parse_values(values: str, type_map: Mapping[str, type], ignore_unknown: bool = False) -> dict[str, Any]:
    """Names and values in a text as in ``rate=0.5,layers=[32,16],layers[0]=64``.

    Args:
        values: the text.
        type_map: type of each name; of a list that of its items.
        ignore_unknown: leave out names that ``type_map`` does not have.

    Returns:
        A value for each name; a list where it stood in brackets; a dict from index to item where items were set.

    Raises:
        InputError: the text does not read so, or names what there is not, or a value twice.
    """
    found: dict[str, Any] = {}
    at = 0
    while at < len(values):
        match = _ASSIGNMENT.match(values, at)
        if match is None:
            raise InputError(f"HParams.parse: saw {values[at:]!r}, wanted name=value, name=[value,…] or name[0]=value")
        at = match.end()
        name, index = match["name"], match["index"]
        if name not in type_map:
            if ignore_unknown:
                continue
            raise InputError(f"HParams.parse: there is no {name!r}; there are {', '.join(type_map) or 'none'}")
        read = _reader(name, type_map[name])
        if match["list"] is not None:
            value: Any = [read(item.strip()) for item in match["list"].split(",") if item.strip()]
        else:
            value = read(match["value"].strip())
        if index is not None:
            items = found.setdefault(name, {})
            if not isinstance(items, dict) or int(index) in items:
                raise InputError(f"HParams.parse: {name}[{index}] is set twice; leave one out")
            items[int(index)] = value
        elif name in found:
            raise InputError(f"HParams.parse: {name} is set twice; leave one out")
        else:
            found[name] = value
    return found


def _reader(name: str, kind: type) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            if kind is bool:
                return _BOOLEANS[text.lower()]
            if kind is type(None):
                return text
            return kind(text)
        except (KeyError, ValueError, TypeError):
            raise InputError(f"HParams.parse({name}): saw {text!r}, wanted a value of type {kind.__name__}") from None

    return read


def _cast(name: str, kind: type, value: Any) -> Any:
    """The value in the type, if nothing is lost."""
    if kind is type(None) or value is None or (isinstance(value, kind) and isinstance(value, bool) == (kind is bool)):
        return value
    number = isinstance(value, numbers.Number) and not isinstance(value, bool)
    if kind is float and number:
        return float(value)
    if kind is int and number and int(value) == value:
        return int(value)
    if callable(value) and not isinstance(value, type) and not issubclass(kind, bool | int | float | str):
        return value
    raise InputError(f"HParams({name}): saw {value!r}, wanted a value of type {kind.__name__}")
