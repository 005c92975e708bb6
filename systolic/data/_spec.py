"""What one example looks like: shape and dtype of each feature, on the host and on the device.

An `ElementSpec` is learnt from the first element (or taken from an earlier training run) and is what makes batches
static: every later example must agree with it, and the programs are compiled from it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.tree_util import keystr, tree_flatten_with_path

from systolic._errors import InputError


@dataclasses.dataclass(frozen=True)
class FeatureSpec:
    """One feature of one example.

    Args:
        shape: shape of one example, without the batch dimension.
        dtype_host: dtype in which batches leave the host. ``uint8`` images stay ``uint8``: a small transfer.
        dtype_device: dtype the model sees; None for a feature that stays on the host (strings, bytes, objects, dates).
    """

    shape: tuple[int, ...]
    dtype_host: np.dtype
    dtype_device: np.dtype | None

    @property
    def host_only(self) -> bool:
        return self.dtype_device is None

    @property
    def nbytes(self) -> int:
        """Bytes one example takes on its way to the device."""
        return math.prod(self.shape) * self.dtype_host.itemsize

    def to_json(self) -> dict[str, Any]:
        device = None if self.dtype_device is None else self.dtype_device.name
        return {"shape": list(self.shape), "dtype": self.dtype_host.name, "device_dtype": device}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> FeatureSpec:
        device = value["device_dtype"]
        return cls(tuple(value["shape"]), _dtype(value["dtype"]), None if device is None else _dtype(device))


@dataclasses.dataclass(frozen=True)
class ElementSpec:
    """One example: pytrees (dicts, tuples) of `FeatureSpec` for features and, where there are any, labels.

    Example:
        >>> import numpy as np
        >>> f32 = np.dtype("float32")
        >>> spec = ElementSpec({"x": FeatureSpec((3,), f32, f32)}, None)
        >>> features, labels = spec.batched(8, stack=2)
        >>> features["x"].shape
        (2, 8, 3)
        >>> ElementSpec.from_json(spec.to_json()) == spec
        True
    """

    features: Any
    labels: Any = None
    host_only: tuple[str, ...] = dataclasses.field(default=(), compare=False, repr=False)
    """Of a `device` spec: the features that were left out of it, by name, for messages."""

    def batched(self, batch_size: int, stack: int | None = None, *, device: bool = False) -> tuple[Any, Any]:
        """(features, labels) as `jax.ShapeDtypeStruct`s of shape [batch_size, ...] or [stack, batch_size, ...].

        Host-only features are left out. The dtypes are those in which batches travel (what a compiled program takes as
        its argument); ``device=True`` gives those the model sees after `to_device_dtypes`.
        """
        lead = (batch_size,) if stack is None else (stack, batch_size)

        def struct(spec: FeatureSpec) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(lead + spec.shape, spec.dtype_device if device else spec.dtype_host)

        return jax.tree.map(struct, (self.device.features, self.device.labels), is_leaf=is_feature_spec)

    @property
    def device(self) -> ElementSpec:
        """The part that travels to the device: without host-only features."""
        left_out = tuple(name for name, spec in self.named().items() if spec.host_only)
        return ElementSpec(without_host_only(self.features), without_host_only(self.labels), self.host_only + left_out)

    def named(self) -> dict[str, FeatureSpec]:
        """Name (as used in messages: ``image``, ``user/age``, ``labels``) to spec, in flattening order."""
        return dict(named_leaves(self.features, self.labels, is_leaf=is_feature_spec))

    def to_json(self) -> dict[str, Any]:
        return {"features": _tree_to_json(self.features), "labels": _tree_to_json(self.labels)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ElementSpec:
        return cls(_tree_from_json(value["features"]), _tree_from_json(value["labels"]))


def is_feature_spec(node: Any) -> bool:
    return isinstance(node, FeatureSpec)


def without_host_only(tree: Any) -> Any:
    """Drop host-only features: dict entries disappear, tuple entries become None, so the others keep their place."""
    if isinstance(tree, dict):
        return {name: without_host_only(child) for name, child in tree.items() if not _is_host_leaf(child)}
    if isinstance(tree, tuple):
        return tuple(without_host_only(child) for child in tree)
    return None if _is_host_leaf(tree) else tree


def named_leaves(features: Any, labels: Any, is_leaf=None) -> list[tuple[str, Any]]:
    """(name, leaf) of features, then labels, all names different.

    A feature goes by its path, ``user/age``, a bare array by ``features``; labels by ``labels`` or ``labels/...``, and a
    feature that is itself called that by ``features/labels``.
    """
    pairs = []
    for root, tree in (("features", features), ("labels", labels)):
        for path, leaf in tree_flatten_with_path(tree, is_leaf=is_leaf)[0]:
            name = keystr(path, simple=True, separator="/")
            if root == "labels" or not name or name.split("/")[0] in ("features", "labels"):
                name = f"{root}/{name}" if name else root
            pairs.append((name, leaf))
    return pairs


def _is_host_leaf(node: Any) -> bool:
    return isinstance(node, FeatureSpec) and node.host_only


def _dtype(name: str) -> np.dtype:
    return np.dtype(name) if name in np.sctypeDict else jax.numpy.dtype(getattr(jax.numpy, name))


def _tree_to_json(tree: Any) -> Any:
    if tree is None:
        return None
    if isinstance(tree, FeatureSpec):
        return tree.to_json()
    if isinstance(tree, dict):
        return {"dict": {name: _tree_to_json(child) for name, child in tree.items()}}
    if isinstance(tree, tuple):
        return {"tuple": [_tree_to_json(child) for child in tree]}
    raise InputError(f"spec: {type(tree).__name__} seen, a FeatureSpec or a dict or tuple of them wanted")


def _tree_from_json(value: Any) -> Any:
    if value is None:
        return None
    if "dict" in value:
        return {name: _tree_from_json(child) for name, child in value["dict"].items()}
    if "tuple" in value:
        return tuple(_tree_from_json(child) for child in value["tuple"])
    return FeatureSpec.from_json(value)
