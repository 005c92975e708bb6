"""The door through which every element passes: compared with the spec, cast, and flattened.

The first element settles the spec; for each later one whose types, shapes and dtypes were met before, passing costs
one flattening and one comparison.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jax.tree_util import tree_flatten, tree_structure, tree_unflatten

from systolic._errors import InputError
from systolic._log import Notices

from ._casting import Cast, cast_notice, feature_spec, find_cast, is_host_only
from ._spec import ElementSpec, FeatureSpec, is_feature_spec, named_leaves
from ._tree import canonical, split, to_numpy

_MARK = "Mark the source with systolic.data.examples(...) or systolic.data.batches(...) to say which it is"


class Door:
    """Admits elements; afterwards holds what was learnt.

    Args:
        spec: what examples must look like (from an earlier run), or None to learn it from the first element.
        labels_expected: True demands labels, False drops them, None takes what comes.
        notices: where casts are told, once each.

    Attributes:
        spec: the `ElementSpec` in force, None before the first element.
        batched: whether elements carry a leading batch dimension, None before it is known.
    """

    def __init__(self, spec: ElementSpec | None, labels_expected: bool | None, notices: Notices) -> None:
        self._given = spec
        self._labels_expected = labels_expected
        self._notices = notices
        self._guessed = False
        self._signature: list | None = None
        self._treedef: Any = None
        self._rows: int | None = None
        self._changes: list[tuple[int, bool, Cast | None]] = []
        self.spec: ElementSpec | None = None
        self.batched: bool | None = None
        self.names: tuple[str, ...] = ()
        self.specs: tuple[FeatureSpec, ...] = ()

    def admit(self, element: Any, epoch: int, index: int) -> tuple[list[np.ndarray], int | None]:
        """Leaves of one element in the order of `names`, cast, and its number of rows (None: it is one example).

        ``index`` is the number, within the epoch, of the element's first example.
        """
        leaves, treedef = tree_flatten(element)
        try:
            signature = [(type(leaf), leaf.shape, leaf.dtype) for leaf in leaves]
        except AttributeError:
            signature = [(type(leaf), getattr(leaf, "shape", None), getattr(leaf, "dtype", None)) for leaf in leaves]
        if signature != self._signature or treedef != self._treedef:
            raw, arrays, rows, casts = self._inspect(element, epoch, index, self.batched)
            self._remember(leaves, raw, signature, treedef, rows, casts)
            return [self.cast(i, arrays[i], cast, epoch, index) for i, cast in enumerate(casts)], rows
        del leaves[len(self.names) :]
        for i, convert, cast in self._changes:
            array = to_numpy(leaves[i], self.names[i]) if convert else leaves[i]
            leaves[i] = self.cast(i, array, cast, epoch, index)
        return leaves, self._rows

    def admit_arrays(self, tree: Any, epoch: int) -> tuple[list[np.ndarray], int, list[Cast | None]]:
        """Leaves of a whole data set in memory, not yet cast, its number of rows, and the cast for each leaf."""
        _, arrays, rows, casts = self._inspect(tree, epoch, 0, True)
        return arrays, rows, casts

    def cast(self, i: int, array: np.ndarray, cast: Cast | None, epoch: int, index: int, order=None) -> np.ndarray:
        """Apply a cast; ``order`` maps rows to example numbers where they are not consecutive."""
        if cast is None:
            return array
        return cast(array, lambda row: _where(self.names[i], epoch, index + row if order is None else int(order[row])))

    def unflatten(self, leaves: list[Any]) -> tuple[Any, Any, dict[str, Any] | None]:
        """(features, labels, host-only columns by name or None) from leaves in the order of `names`."""
        features, labels = tree_unflatten(self._device_treedef, [leaves[i] for i in self._device])
        host = {self.names[i]: leaves[i] for i in self._host} if self._host else None
        return features, labels, host

    def _inspect(self, element: Any, epoch: int, index: int, batched: bool | None):
        """Everything about one element: raw leaves, arrays, rows, casts. Settles the spec if this is the first."""
        features, labels = self._split(element, epoch, index)
        pairs = named_leaves(features, labels)
        names = tuple(name for name, _ in pairs)
        raw = [leaf for _, leaf in pairs]
        arrays = [to_numpy(leaf, name) for name, leaf in pairs]
        if not arrays:
            raise InputError(f"{_where(None, epoch, index)}: no features seen; a dict or tuple of arrays wanted")
        if self.spec is None:
            self._settle(features, labels, names, arrays, batched)
        elif names != self.names:
            raise InputError(_names_differ(self.names, names, epoch, index))
        rows = self._check_shapes(arrays, epoch, index, True if batched else self.batched)
        casts = [self._find_cast(i, array, epoch, index) for i, array in enumerate(arrays)]
        return raw, arrays, rows, casts

    def _split(self, element: Any, epoch: int, index: int) -> tuple[Any, Any]:
        features, labels = split(element)
        if self._labels_expected is False:
            if labels is not None and self._given is not None and not isinstance(features, dict):
                whole = canonical(element, "features")
                if tree_structure(whole) == tree_structure(self._given.features, is_leaf=is_feature_spec):
                    return whole, None
            labels = None
        if self._labels_expected and labels is None:
            raise InputError(
                f"{_where(None, epoch, index)}: {_describe_kind(element)} seen, a pair (features, labels) wanted. Let "
                "input_fn return or yield such pairs"
            )
        return canonical(features, "features"), canonical(labels, "labels")

    def _settle(self, features: Any, labels: Any, names: tuple, arrays: list[np.ndarray], batched: bool | None) -> None:
        given = {} if self._given is None else self._given.named()
        if self._labels_expected is False:
            given = {name: spec for name, spec in given.items() if name.split("/")[0] != "labels"}
        if self._given is not None:
            wanted = [name for name, spec in given.items() if not spec.host_only]
            seen = [name for name, array in zip(names, arrays) if name in given or not is_host_only(array.dtype)]
            if set(seen) != set(wanted):
                raise InputError(_names_differ(wanted, seen, 0, 0))
        if batched is None:
            batched = self._is_batch(names, arrays, given)
        specs = []
        for name, array in zip(names, arrays):
            if batched and array.ndim == 0:
                raise InputError(f"{_label(name)}: a scalar seen; an array with a leading batch dimension wanted. {_MARK}")
            spec = given.get(name) or feature_spec(array.shape[1:] if batched else array.shape, array.dtype)
            if name.split("/")[0] == "labels" and spec.host_only:
                raise InputError(f"{name}: {array.dtype} values seen, numbers wanted. Map labels to integer ids in input_fn")
            specs.append(spec)
        if all(spec.host_only for spec in specs):
            raise InputError(f"features: only {', '.join(names)} seen, which no device can take; at least one feature of numbers wanted")
        self.names, self.specs = names, tuple(specs)
        self.batched = batched
        self.spec = ElementSpec(*tree_unflatten(tree_structure((features, labels)), specs))
        device = self.spec.device
        self._device_treedef = tree_structure((device.features, device.labels), is_leaf=is_feature_spec)
        self._device = [i for i, spec in enumerate(specs) if not spec.host_only]
        self._host = [i for i, spec in enumerate(specs) if spec.host_only]
        for name, array, spec in zip(names, arrays, specs):
            text = cast_notice(name, array.dtype, spec)
            if text:
                self._notices.give(text)

    def _is_batch(self, names: tuple, arrays: list[np.ndarray], given: dict[str, FeatureSpec]) -> bool:
        """Example or batch, for an element that nothing marks: the ranks of a known spec, else the leading dimension."""
        extra = {array.ndim - len(given[name].shape) for name, array in zip(names, arrays) if name in given}
        if extra in ({0}, {1}):
            return extra == {1}
        leading = {array.shape[0] if array.ndim else None for array in arrays}
        if len(leading) != 1 or None in leading:
            self._guessed = True
            return False
        self._guessed = True
        self._notices.give(
            f"input: an element whose every leaf has leading dimension {leading.pop()} was read as a batch of that many "
            f"examples. {_MARK}"
        )
        return True

    def _check_shapes(self, arrays: list[np.ndarray], epoch: int, index: int, batched: bool) -> int | None:
        first = None
        for name, spec, array in zip(self.names, self.specs, arrays):
            shape = array.shape[1:] if batched else array.shape
            if (batched and array.ndim == 0) or shape != spec.shape:
                expected = ("rows", *spec.shape) if batched else spec.shape
                raise InputError(
                    f"{_where(name, epoch, index, batched)}: shape {array.shape} seen, "
                    f"({', '.join(map(str, expected))}{',' if len(expected) == 1 else ''}) expected. All examples need one "
                    "shape: pad or crop them in input_fn" + (f". {_MARK}" if self._guessed else "")
                )
            if batched and first is None:
                first = name, array.shape[0]
            elif batched and array.shape[0] != first[1]:
                raise InputError(
                    f"{_where(None, epoch, index, batched)}: {_label(first[0])} has {first[1]} rows and {_label(name)} has "
                    f"{array.shape[0]}. Features and labels need one row for each example"
                )
        return first[1] if batched else None

    def _find_cast(self, i: int, array: np.ndarray, epoch: int, index: int) -> Cast | None:
        try:
            return find_cast(array.dtype, self.specs[i].dtype_host)
        except TypeError as error:
            raise InputError(
                f"{_where(self.names[i], epoch, index, self.batched)}: {error}. Cast it in input_fn, the same for every example"
            ) from None

    def _remember(self, leaves: list, raw: list, signature: list, treedef: Any, rows: int | None, casts: list) -> None:
        """Note how this element passed, if flattening alone finds its leaves in order, for the next one like it."""
        if len(leaves) < len(raw) or any(a is not b for a, b in zip(leaves, raw)):
            return
        self._signature, self._treedef, self._rows = signature, treedef, rows
        self._changes = [
            (i, not isinstance(leaf, np.ndarray), cast)
            for i, (leaf, cast) in enumerate(zip(raw, casts))
            if cast is not None or not isinstance(leaf, np.ndarray | np.generic)
        ]


def _label(name: str) -> str:
    return name if name.split("/")[0] == "labels" else f"feature {name!r}"


def _where(name: str | None, epoch: int, index: int, batched: bool | None = False) -> str:
    place = f"the batch that starts at example {index}" if batched else f"example {index}"
    if epoch:
        place += f" of epoch {epoch}"
    return place if name is None else f"{_label(name)} of {place}"


def _describe_kind(element: Any) -> str:
    size = f" of {len(element)}" if isinstance(element, tuple | list | dict) else ""
    return f"{type(element).__name__}{size} without labels"


def _names_differ(wanted: Any, seen: Any, epoch: int, index: int) -> str:
    missing = ", ".join(map(repr, sorted(set(wanted) - set(seen))))
    extra = ", ".join(map(repr, sorted(set(seen) - set(wanted))))
    parts = [f"{word} {names}" for word, names in (("missing:", missing), ("not expected:", extra)) if names]
    return (
        f"{_where(None, epoch, index)}: {'; '.join(parts)}. Features and labels seen: {', '.join(sorted(seen))}; expected: "
        f"{', '.join(sorted(wanted))}. Yield the same names for every example, and the same as in training"
    )
