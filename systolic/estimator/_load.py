"""A model that was exported: loads without the code that made it."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import threading
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from systolic._arguments import folder
from systolic._errors import CheckpointError, InputError
from systolic._log import Notices
from systolic.data import Batches, ElementSpec
from systolic.estimator import _metrics
from systolic.estimator._dispatch import batch_tree
from systolic.estimator._evaluate import refuse_scalar_loss
from systolic.estimator._export import DESCRIPTION, FORMAT, WEIGHTS
from systolic.estimator._mode import Mode
from systolic.estimator._one_pass import one_pass
from systolic.estimator._spec import Finalizer
from systolic.estimator._totals import Totals
from systolic.program import Program
from systolic.target import Target


def load(directory: Any, target: str | Target = "auto") -> Loaded:
    """Load an exported model and put its weights on ``target``'s first device.

    Raises:
        CheckpointError: the folder is no export, is incomplete or damaged, or is of a newer format.
        InputError: it was not exported for the target's platform.
    """
    return Loaded(folder("load(directory)", directory), Target(f"{Target(target).platform}:1"))


class Loaded:
    """An exported model on one device; may be used from several threads.

    Attributes:
        spec: shapes and dtypes of one example.
        step: training step at which it was exported.
        batch_sizes: batch sizes of the prediction program, ascending.
        description: the whole of ``systolic.json``.
    """

    def __init__(self, directory: pathlib.Path, target: Target) -> None:
        self.directory = directory
        self.target = target
        self.description = _describe(directory)
        platform = {"gpu": "cuda"}.get(target.platform, target.platform)
        if platform not in self.description["platforms"]:
            raise InputError(
                f"load(target): {directory} was exported for {', '.join(self.description['platforms'])}, not for {platform}; "
                f"export it again with platforms=[…, {platform!r}]"
            )
        self.spec = ElementSpec.from_json(self.description["spec"])
        self.step = int(self.description["step"])
        self._programs = {(Mode(p["mode"]), p["batch_size"]): p["file"] for p in self.description["programs"]}
        self.batch_sizes = sorted(size for mode, size in self._programs if mode is Mode.PREDICT)
        sharding = NamedSharding(target.mesh({"data": 1}), PartitionSpec())
        self._weights = jax.device_put(_read_weights(directory), sharding)
        self._compiled: dict[tuple[Mode, int], Any] = {}
        self._compiling = threading.Lock()
        self._notices = Notices()

    def predict(self, features: Any) -> Any:
        """Predictions for any number of examples.

        Args:
            features: pytree of arrays, or lists of numbers, as ``input_fn`` gave them to training, with a common leading
                dimension N >= 1.

        Returns:
            pytree of NumPy arrays with leading dimension N. Rows are computed in the exported batch sizes (the last one
            padded); which ones does not change them beyond float32 rounding.
        """
        features, total = _arrays(features)
        parts, start = [], 0
        while start < total:
            left = total - start
            size = next((s for s in self.batch_sizes if s >= left), self.batch_sizes[-1])
            part = jax.tree.map(lambda x, a=start, b=start + size: x[a:b], features)
            batches = Batches(
                part,
                size,
                tail="pad",
                epochs=1,
                spec=dataclasses.replace(self.spec, labels=None),
                notices=self._notices,
            )
            batch = next(iter(batches))
            out = self._executable(Mode.PREDICT, size)(self._weights, batch_tree(batch._replace(mask=None)))
            parts.append(jax.tree.map(lambda x, n=batch.count: np.asarray(x)[:n], out))
            start += size
        return jax.tree.map(lambda *xs: np.concatenate(xs), *parts)

    def evaluate(self, input_fn: Any) -> dict[str, float]:
        """Exact metrics over one pass of ``input_fn``.

        Raises:
            InputError: the model was exported without an evaluation program, or uses metrics of its own making, or
                its loss is a scalar and a batch had to be padded.
        """
        size = next((size for mode, size in self._programs if mode is Mode.EVAL), None)
        if size is None:
            raise InputError(f"evaluate: {self.directory} has no evaluation program: it was trained without labels")
        totals = Totals({name: _finalizer(name, m) for name, m in self.description["metrics"].items()})
        batches = Batches(input_fn, size, tail="pad", epochs=1, spec=self.spec, notices=self._notices)
        program = self._executable(Mode.EVAL, size)
        results = one_pass(batches, program, self._weights, self.target)
        with contextlib.closing(results):
            for done, (sums, batch) in enumerate(results):
                if batch.count < size and self.description.get("scalar_loss"):
                    refuse_scalar_loss(batch.count, size, done)
                totals.add(sums)
        return totals.result()

    def _executable(self, mode: Mode, size: int) -> Any:
        key = (mode, size)
        with self._compiling:  # threads that serve the first requests wait for one compile
            if key in self._compiled:
                return self._compiled[key]
            exported = jax.export.deserialize(bytearray((self.directory / self._programs[key]).read_bytes()))
            weights, batch = jax.tree.unflatten(exported.in_tree, exported.in_avals)[0]
            program = Program(exported.call, weights, batch, name=f"{mode.value}_b{size}")
            self._compiled[key] = program.compile(self.target)
            return self._compiled[key]

    def __repr__(self) -> str:
        return f"Loaded({str(self.directory)!r}, step {self.step}, batch sizes {self.batch_sizes})"


def _describe(directory: pathlib.Path) -> dict[str, Any]:
    file = directory / DESCRIPTION
    if not os.path.isfile(file):  # false also for a name that no file can have
        raise CheckpointError(
            f"load: {directory} is not an export (no {DESCRIPTION}); name a folder that estimator.export wrote"
        )
    try:
        description = json.loads(_read(file))
        known, sums = int(description["format"]), dict(description["sha256"])
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"load: {file} is damaged ({error}); export the model again") from error
    if known > FORMAT:
        raise CheckpointError(
            f"load: {directory} has format {known}, this version reads up to {FORMAT}; update systolic"
        )
    if absent := [key for key in ("platforms", "spec", "step", "programs", "metrics") if key not in description]:
        raise CheckpointError(f"load: {file} is damaged (no {', '.join(absent)}); export the model again")
    for name, wanted in sums.items():
        path = directory / name
        if not path.is_file():
            raise CheckpointError(f"load: {path} is missing; copy the whole folder, or export again")
        if hashlib.sha256(_read(path)).hexdigest() != wanted:
            raise CheckpointError(f"load: {path} does not match its checksum; copy it again, or export again")
    return description


def _read(file: pathlib.Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise CheckpointError(f"load: {file} cannot be read ({error.strerror}); change who may read it") from error


def _read_weights(directory: pathlib.Path) -> dict[str, np.ndarray]:
    from safetensors.numpy import load_file

    return load_file(directory / WEIGHTS)


def _finalizer(name: str, kind: str | None) -> Finalizer:
    found = getattr(_metrics, kind, None) if kind is not None else None
    if not (isinstance(found, type) and issubclass(found, _metrics.Metric)):
        own = "a class of its author's own" if kind is None else f"class {kind}"
        raise InputError(
            f"evaluate: metric {name!r} is of {own}, which is not one of systolic's, and an export holds no code of "
            "the user's; evaluate with the Estimator, or use predict and compute it"
        )
    return Finalizer(kind, found.finalize, found.reductions)


def _arrays(features: Any) -> tuple[Any, int]:
    """Features as NumPy arrays, and how many examples they are."""
    wanted = "wanted arrays of one common leading dimension of at least 1, named as in training"
    try:
        features = jax.tree.map(np.asarray, features, is_leaf=lambda x: isinstance(x, list))
    except ValueError as error:  # lists of lists of different lengths
        raise InputError(f"predict(features): {error}; {wanted}") from error
    leaves = jax.tree.leaves(features)
    if not leaves or any(x.ndim == 0 and x.dtype == object for x in leaves):
        raise InputError(f"predict(features): saw {'nothing' if not leaves else 'a value that is no array'}; {wanted}")
    sizes = {x.shape[0] if x.ndim else None for x in leaves}
    if len(sizes) != 1 or sizes & {None, 0}:
        raise InputError(f"predict(features): saw leading dimensions {sizes}; {wanted}")
    return features, int(leaves[0].shape[0])
