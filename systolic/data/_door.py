"""The door through which every element passes: compared with the spec, cast, and flattened.

The first element settles the spec; for each later one whose types, shapes and dtypes were met before, passing costs
one flattening and one comparison.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.tree_util import tree_flatten, tree_structure, tree_unflatten

from systolic._errors import InputError
from systolic._log import Notices

from ._casting import Cast, cast_notice, cast_scalar, feature_spec, find_cast, is_host_only
from ._messages import MARK, is_label, kind, label, names_differ, where
from ._not_data import check_rows, no_single_reading
from ._spec import ElementSpec, FeatureSpec, named_leaves
from ._tree import canonical, split, to_numpy


class Door:
    """Admits elements; afterwards holds what was learnt.

    Args:
        spec: what examples must look like (from an earlier run), or None to learn it from the first element.
        labels_expected: True demands labels, False drops them, None takes what comes.
        notices: where casts are told, once each.

    Attributes:
        spec: the `ElementSpec` in force, None before the first element.
        names: names of its leaves in flattening order, and ``specs`` their specs.
        batched: whether elements carry a leading batch dimension, None before it is known.
    """

    def __init__(self, spec: ElementSpec | None, labels_expected: bool | None, notices: Notices) -> None:
        self._given = spec
        self._labels_expected = labels_expected
        self.notices = notices
        self._guessed = False
        # How the last new kind of element passed:
        self._signature: list | None = None
        self._treedef: Any = None
        self._rows: int | None = None
        self._changes: list[tuple[int, bool, Cast | None]] = []  # (leaf, whether to make it an array, how to cast)
        self._plain = True  # whether all leaves had shape and dtype
        self.spec: ElementSpec | None = None
        self.batched: bool | None = None
        self.names: tuple[str, ...] = ()
        self.specs: tuple[FeatureSpec, ...] = ()
        self.host: list[int] = []  # which leaves are host-only

    def admit(self, element: Any, epoch: int, index: int) -> tuple[list[Any], int | None]:
        """Leaves of one element in the order of `names`, cast, and its number of rows (None: it is one example).

        ``index`` is the number, within the epoch, of the element's first example. Leaves of an example may be Python
        numbers and strings.
        """
        try:
            leaves, treedef = tree_flatten(element)
        except (TypeError, ValueError):  # names that do not compare; told in our words by the inspection
            self._inspect(element, epoch, index, self.batched)
            raise
        try:
            if self._plain:
                signature = [(type(leaf), leaf.shape, leaf.dtype) for leaf in leaves]
            else:
                signature = [
                    (type(leaf), getattr(leaf, "shape", None), getattr(leaf, "dtype", None)) for leaf in leaves
                ]
        except AttributeError:
            signature = [(type(leaf), getattr(leaf, "shape", None), getattr(leaf, "dtype", None)) for leaf in leaves]
            self._plain = False
        if signature != self._signature or treedef != self._treedef:
            raw, arrays, rows, casts = self._inspect(element, epoch, index, self.batched)
            self._remember(leaves, raw, signature, treedef, rows, casts)
            return [self.cast(i, arrays[i], cast, epoch, index) for i, cast in enumerate(casts)], rows
        del leaves[len(self.names) :]
        for i, convert, cast in self._changes:
            leaf = to_numpy(leaves[i], self.names[i]) if convert else leaves[i]
            leaves[i] = self.cast(i, leaf, cast, epoch, index)
        return leaves, self._rows

    def admit_arrays(self, tree: Any, epoch: int) -> tuple[list[np.ndarray], int, list[Cast | None]]:
        """Leaves of a whole data set in memory, not yet cast, its number of rows, and the cast for each leaf."""
        features, labels, _ = self._split(tree, epoch, 0)
        for name, leaf in named_leaves(features, labels):
            check_rows(name, leaf)
        _, arrays, rows, casts = self._inspect(tree, epoch, 0, True)
        return arrays, rows, casts

    def cast(self, i: int, leaf: Any, cast: Cast | None, epoch: int, index: int, order: Any = None) -> Any:
        """Apply a cast; ``order`` maps rows to example numbers where they are not consecutive."""
        if cast is None:
            return leaf
        return cast(leaf, lambda row: where(self.names[i], epoch, index + row if order is None else int(order[row])))

    def unflatten(self, leaves: list[Any]) -> tuple[Any, Any, dict[str, Any] | None]:
        """(features, labels, host-only columns by name or None) from leaves in the order of `names`."""
        if not self.host:
            return *tree_unflatten(self._device_treedef, leaves), None
        device = [leaf for leaf, spec in zip(leaves, self.specs) if not spec.host_only]
        return *tree_unflatten(self._device_treedef, device), {self.names[i]: leaves[i] for i in self.host}

    def _inspect(self, element: Any, epoch: int, index: int, batched: bool | None):
        """Everything about one element: raw leaves, arrays, rows, casts. Settles the spec if this is the first."""
        features, labels, dropped = self._split(element, epoch, index)
        pairs = named_leaves(features, labels)
        names = tuple(name for name, _ in pairs)
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise InputError(f"{label(twice)}: seen twice, once as a name with '/' and once nested; rename one of them")
        arrays = [to_numpy(leaf, name) for name, leaf in pairs]
        if not arrays:
            raise InputError(
                f"{where(None, epoch, index)}: no features seen ({kind(element)}); an array, or a dict or tuple of arrays, wanted"
            )
        if self.spec is None:
            self._settle(features, labels, names, arrays, self._is_batch(names, arrays, dropped, batched))
        elif names != self.names:
            raise InputError(names_differ(self.names, names, epoch, index))
        rows = self._check_shapes(arrays, epoch, index, batched or self.batched)
        casts = [self._find_cast(i, array, epoch, index) for i, array in enumerate(arrays)]
        return [leaf for _, leaf in pairs], arrays, rows, casts

    def _split(self, element: Any, epoch: int, index: int) -> tuple[Any, Any, Any]:
        """(features, labels, labels that are not wanted)."""
        given = self._given
        unlabelled = self._labels_expected is False or (given is not None and given.labels is None)
        if given is not None and unlabelled and isinstance(element, tuple | list):
            # Where the model takes a tuple of features, a pair is not (features, labels).
            whole = canonical(element, "features")
            if tree_structure(whole) == tree_structure(given.features):
                return whole, None, None
        features, labels = split(element)
        dropped = None
        if self._labels_expected is False:
            labels, dropped = None, labels
        if self._labels_expected and labels is None:
            raise InputError(
                f"{where(None, epoch, index)}: {kind(element)} without labels seen, a pair (features, labels) wanted. "
                "Let input_fn return or yield such pairs"
            )
        return canonical(features, "features"), canonical(labels, "labels"), dropped

    def _settle(
        self, features: Any, labels: Any, names: Sequence[str], arrays: list[np.ndarray], batched: bool
    ) -> None:
        """Make the spec from the first element, within what was given."""
        given = self._given_specs()
        if self._given is not None:  # host-only features may come and go: the model does not see them
            wanted = [name for name, spec in given.items() if not spec.host_only]
            host = {name for name, array in zip(names, arrays) if is_host_only(array.dtype) and name not in wanted}
            if set(names) - host != set(wanted):
                raise InputError(names_differ(wanted, set(names) - host, 0, 0))
        specs = []
        for name, array in zip(names, arrays):
            if batched and array.ndim == 0:
                raise InputError(
                    f"{label(name)}: a scalar seen; an array with a leading batch dimension wanted. {MARK}"
                )
            spec = given.get(name) or feature_spec(array.shape[1:] if batched else array.shape, array.dtype)
            if spec.host_only and is_label(name):
                raise InputError(
                    f"{name}: {array.dtype} values seen, numbers wanted. Map labels to integer ids in input_fn"
                )
            specs.append(spec)
        if all(spec.host_only for spec in specs):
            seen = ", ".join(f"{label(name)} ({_what(array)})" for name, array in zip(names, arrays))
            raise InputError(
                f"input_fn: only {seen} seen, which cannot go to a device; at least one feature of numbers wanted. Turn "
                "strings into integer ids, and objects into arrays, in input_fn"
            )
        self.names, self.specs, self.batched = tuple(names), tuple(specs), batched
        self.host = [i for i, spec in enumerate(specs) if spec.host_only]
        self.spec = ElementSpec(*tree_unflatten(tree_structure((features, labels)), specs))
        self._device_treedef = tree_structure((self.spec.device.features, self.spec.device.labels))
        for name, array, spec in zip(names, arrays, specs):
            text = cast_notice(name, array.dtype, spec)
            if text:
                self.notices.give(text)

    def _given_specs(self) -> dict[str, FeatureSpec]:
        given = {} if self._given is None else self._given.named()
        if self._labels_expected is False:
            given = {name: spec for name, spec in given.items() if not is_label(name)}
        return given

    def _is_batch(self, names: Sequence[str], arrays: list[np.ndarray], dropped: Any, batched: bool | None) -> bool:
        """Example or batch: by a mark, else by the ranks of a known spec, else by leading dimensions."""
        if batched is not None:
            return batched
        given = self._given_specs()
        extra = {array.ndim - len(given[name].shape) for name, array in zip(names, arrays) if name in given}
        if extra in ({0}, {1}):
            return extra == {1}
        self._guessed = True
        arrays = arrays + [to_numpy(leaf, name) for name, leaf in named_leaves(None, canonical(dropped, "labels"))]
        leading = {array.shape[0] if array.ndim else None for array in arrays}
        if len(leading) != 1 or None in leading:
            return False
        if len(arrays) == 1:
            raise no_single_reading(arrays[0].shape, MARK)
        self.notices.give(
            f"input: an element whose every leaf has leading dimension {leading.pop()} was read as a batch of that "
            f"many examples. {MARK}"
        )
        return True

    def _check_shapes(self, arrays: list[np.ndarray], epoch: int, index: int, batched: bool | None) -> int | None:
        rows = None
        for name, spec, array in zip(self.names, self.specs, arrays):
            shape = array.shape[1:] if batched else array.shape
            if (batched and array.ndim == 0) or shape != spec.shape:
                expected = ("rows", *spec.shape) if batched else spec.shape
                raise InputError(
                    f"{where(name, epoch, index, batched)}: shape {array.shape} seen, "
                    f"({', '.join(map(str, expected))}{',' if len(expected) == 1 else ''}) expected. All examples need "
                    "one shape: pad or crop them in input_fn" + (f". {MARK}" if self._guessed else "")
                )
            if batched and rows is not None and array.shape[0] != rows:
                raise InputError(
                    f"{where(None, epoch, index, batched)}: {label(self.names[0])} has {rows} rows and {label(name)} "
                    f"has {array.shape[0]}. Features and labels need one row for each example"
                )
            if batched:
                rows = array.shape[0]
        return rows

    def _find_cast(self, i: int, array: np.ndarray, epoch: int, index: int) -> Cast | None:
        try:
            return find_cast(array.dtype, self.specs[i].dtype_host)
        except TypeError as error:
            raise InputError(
                f"{where(self.names[i], epoch, index, self.batched)}: {error}. Cast it in input_fn, alike for every "
                "example"
            ) from None

    def _remember(self, leaves: list, raw: list, signature: list, treedef: Any, rows: int | None, casts: list) -> None:
        """Note how this element passed, if flattening alone finds its leaves in order, for the next one like it."""
        if len(leaves) < len(raw) or any(a is not b for a, b in zip(leaves, raw)):
            return
        self._signature, self._treedef, self._rows = signature, treedef, rows
        self._plain = all(shape is not None and dtype is not None for _, shape, dtype in signature)
        self._changes = []
        for i, (leaf, cast) in enumerate(zip(raw, casts)):
            if isinstance(leaf, bool | int | float | str | bytes | np.generic):
                scalar_cast = cast_scalar(leaf, self.specs[i].dtype_host, cast)
                if scalar_cast is not None:
                    self._changes.append((i, False, scalar_cast))
            elif cast is not None or type(leaf) is not np.ndarray:
                self._changes.append((i, type(leaf) is not np.ndarray, cast))


def _what(array: np.ndarray) -> str:
    """The types of what an array of strings or objects holds, of its first values."""
    if array.dtype != object:
        return str(array.dtype)
    return " and ".join(sorted({type(value).__name__ for value in array.flat[:100]})) or "object"
