"""Checkpoints: state, data position, metrics and step in one bundle that exists whole or not at all.

Orbax writes them, asynchronously, into a temporary folder that is renamed when complete (this file is the only one that
knows Orbax). State is stored flat, by path, with a list of shapes and dtypes, so that a checkpoint of another model can
be refused by naming the leaves that differ instead of failing in the middle of a restore.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import shutil
import threading
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from systolic._errors import CheckpointError
from systolic._format import format_value
from systolic._log import logger
from systolic.estimator._checkpoint_errors import DISK_FULL, explained, late_reads_unheard, without_orbax_logs
from systolic.program import leaf_names

_TURN = threading.Lock()
_WRITER: list[Any] = []  # the Orbax manager that wrote last in this process
_OVERHEAD = 64 << 10  # bytes that Orbax writes around the arrays: lists of files, of leaves, of shards


class Checkpoints:
    """The checkpoints of one run, in ``folder``; the latest ``keep`` stay.

    Not for sharing between two writers: the run's folder is locked by whoever trains in it.
    """

    def __init__(self, folder: pathlib.Path, keep: int = 3) -> None:
        import orbax.checkpoint as ocp

        self.folder = folder
        self._ocp = ocp
        without_orbax_logs()
        with explained(f"cannot use the checkpoint folder {folder}"):
            self._manager = ocp.CheckpointManager(
                folder.absolute(),
                options=ocp.CheckpointManagerOptions(max_to_keep=keep, create=True, enable_async_checkpointing=True),
            )

    def clean(self) -> None:
        """Remove what a killed run had begun to write. Only for who holds the folder: a reader would cut off a writer."""
        for partial in self.folder.glob("*.orbax-checkpoint-tmp*"):
            shutil.rmtree(partial, ignore_errors=True)

    def refresh(self) -> None:
        """Look at the folder again: another process may have written checkpoints since."""
        self._manager.reload()

    def latest(self) -> int | None:
        """The newest complete checkpoint's step, or ``None``."""
        return self._manager.latest_step()

    def steps(self) -> list[int]:
        """The steps of all complete checkpoints, ascending."""
        return sorted(self._manager.all_steps())

    def save(self, step: int, state: Any, meta: Mapping[str, Any]) -> None:
        """Save ``state`` (pytree of device arrays) and ``meta`` (JSON-able) as of ``step``; writes go on behind.

        The state is copied to the host before this returns, so that its buffers may be donated to the next step.

        Raises:
            CheckpointError: this save, or the one before it, could not be written (disk full, no permission).
        """
        if step in self._manager.all_steps():
            return
        ocp = self._ocp
        flat = {name: np.array(x) for name, x in _flat(jax.device_get(jax.tree.map(_key_data, state))).items()}
        leaves = {name: [list(x.shape), str(x.dtype)] for name, x in flat.items()}
        for name, x in _flat(state).items():
            if _is_key(x):  # its numbers are stored; the kind of generator is told by the third entry
                leaves[name].append(str(x.dtype))
        # Orbax refuses arrays without elements; the list of leaves is enough to make them again.
        arrays = {name: x for name, x in flat.items() if x.size}
        self._refuse_full_disk(step, sum(x.nbytes for x in arrays.values()))
        with explained(f"cannot save step {step} to {self.folder}"), _turn(self._manager):
            self._manager.save(
                step,
                args=ocp.args.Composite(
                    state=ocp.args.PyTreeSave(arrays),
                    meta=ocp.args.JsonSave(_signed({**meta, "leaves": leaves, "checksums": _checksums(flat)})),
                ),
            )

    def _refuse_full_disk(self, step: int, size: int) -> None:
        needed, free = size + _OVERHEAD, shutil.disk_usage(self.folder).free
        if free < needed:
            raise CheckpointError(
                f"cannot save step {step} to {self.folder}: {format_value(needed, 'bytes')} are needed and {format_value(free, 'bytes')} are "
                f"free; {DISK_FULL}"
            )

    @contextlib.contextmanager
    def settled(self) -> Iterator[None]:
        """Leave the body only when the last save is whole, also after an error, which is then the one that is told."""
        try:
            yield
        except BaseException:
            try:
                self.wait()
            except CheckpointError as second:
                logger.error("%s", second)
            raise
        self.wait()

    def wait(self) -> None:
        """Wait for the save that is under way; raises CheckpointError when it failed."""
        with explained(f"cannot save to {self.folder}"):
            self._manager.wait_until_finished()

    def restore(
        self, like: Any, step: int | None = None, only: tuple[str, ...] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """State (pytree of NumPy arrays and PRNG keys, structured as ``like``) and meta of ``step`` (default: the latest).

        Args:
            like: pytree of arrays or ShapeDtypeStructs that the checkpoint must match.
            only: read and compare only leaves under these top-level names, which are those of ``like``.

        Raises:
            CheckpointError: there is none, it cannot be read, or its leaves differ from ``like`` (all are listed).
        """
        step = self._existing(step)
        ocp = self._ocp
        meta = self.meta(step)
        leaves = {
            name: (tuple(shape), np.dtype(dtype), *key) for name, (shape, dtype, *key) in meta.pop("leaves").items()
        }
        wanted = {name: _leaf(x) for name, x in _flat(like).items()}
        _compare(step, {k: v for k, v in leaves.items() if only is None or k.split("/")[0] in only}, wanted)
        empty = {name: np.empty(*leaves[name][:2]) for name in wanted}
        item = {name: x for name, x in empty.items() if x.size}
        arguments = ocp.args.PyTreeRestore(
            item=item,
            restore_args=dict.fromkeys(item, ocp.RestoreArgs(restore_type=np.ndarray)),
            partial_restore=True,  # what is not asked for is not read
        )
        with explained(f"checkpoint {step} in {self.folder} cannot be read", self._remedy(step)), late_reads_unheard():
            restored = self._manager.restore(step, args=ocp.args.Composite(state=arguments)).state if item else {}
        sums = meta.pop("checksums", {})  # checkpoints of earlier versions have none
        self._refuse_damage(step, [n for n, sum_ in _checksums(restored).items() if sums.get(n, sum_) != sum_])
        back = [_key_again(restored.get(name, empty[name]), x) for name, x in _flat(like).items()]
        return jax.tree.unflatten(jax.tree.structure(like), back), meta

    def meta(self, step: int | None = None) -> dict[str, Any]:
        """The JSON part of a checkpoint (step, data position, metrics), without reading arrays."""
        step = self._existing(step)
        with explained(f"checkpoint {step} in {self.folder} cannot be read", self._remedy(step)):
            meta = dict(
                self._manager.restore(step, args=self._ocp.args.Composite(meta=self._ocp.args.JsonRestore())).meta
            )
        if (sum_ := meta.pop("checksum", None)) is not None and _signed(meta)["checksum"] != sum_:
            self._refuse_damage(step, ["meta"])
        return meta

    def _refuse_damage(self, step: int, names: list[str]) -> None:
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise CheckpointError(
                f"checkpoint {step} in {self.folder} is damaged: the checksum of {', '.join(names[:3])}{more} is not that of what "
                f"was saved; {self._remedy(step)}"
            )

    def close(self) -> None:
        """Wait for writes and release the folder."""
        with explained(f"cannot save to {self.folder}"):
            self._manager.close()

    def _existing(self, step: int | None) -> int:
        found = self.steps()
        if not found:
            raise CheckpointError(
                f"no checkpoint in {self.folder}; train first, or name the run's folder (RunConfig.model_dir)"
            )
        if step is None:
            return found[-1]
        if step not in found:
            raise CheckpointError(
                f"no checkpoint of step {step} in {self.folder}; there are {', '.join(map(str, found))}"
            )
        return step

    def _remedy(self, step: int) -> str:
        earlier = [s for s in self.steps() if s < step]
        back = f" to go on from step {earlier[-1]}" if earlier else " to start anew"
        return f"delete {self.folder / str(step)}{back}"


@contextlib.contextmanager
def _turn(manager: Any) -> Iterator[None]:
    """Let one manager of this process write at a time, as trainings in several threads would have it otherwise.

    Orbax numbers its operations by one counter of the whole process, which a write in the background reads: two at once
    wait for each other's signals without end, or take the one's folder for the other's.
    """
    with _TURN:
        if _WRITER and _WRITER[0] is not manager:
            with contextlib.suppress(Exception):  # told to the thread that began that write, when it waits for it
                _WRITER[0].wait_until_finished()
        _WRITER[:] = [manager]
        yield


def _checksums(flat: Mapping[str, np.ndarray]) -> dict[str, int]:
    """CRC-32 of the bytes of each array: the files have none that a flipped bit in the numbers would fail."""
    return {name: zlib.crc32(np.ascontiguousarray(x).reshape(-1).view(np.uint8).data) for name, x in flat.items()}


def _signed(meta: Mapping[str, Any]) -> dict[str, Any]:
    """``meta`` with a checksum of itself."""
    text = json.dumps(meta, sort_keys=True)
    return {**meta, "checksum": zlib.crc32(json.dumps(json.loads(text), sort_keys=True).encode())}


def _flat(tree: Any) -> dict[str, Any]:
    names = leaf_names([tree], [""])
    return dict(zip((name.lstrip("/") for name in names), jax.tree.leaves(tree), strict=True))


def _is_key(leaf: Any) -> bool:
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _key_data(leaf: Any) -> Any:
    """The numbers of a typed PRNG key, which is no array to Orbax or NumPy; another leaf as it is."""
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _key_again(numbers: np.ndarray, like: Any) -> Any:
    """A typed PRNG key of the kind of ``like`` (a key or its ShapeDtypeStruct), where that is one."""
    if not _is_key(like):
        return numbers
    kinds: list[Any] = []
    jax.eval_shape(lambda key: kinds.append(jax.random.key_impl(key)), like)  # a struct alone does not tell its kind
    return jax.random.wrap_key_data(jax.numpy.asarray(numbers), impl=kinds[0])


def _leaf(leaf: Any) -> tuple[Any, ...]:
    """Shape and dtype as they are stored, and for a typed PRNG key its kind."""
    if not _is_key(leaf):
        return tuple(leaf.shape), np.dtype(leaf.dtype)
    numbers = jax.eval_shape(jax.random.key_data, leaf)
    return tuple(numbers.shape), np.dtype(numbers.dtype), str(leaf.dtype)


def _compare(step: int, saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    def show(shape_dtype: Any) -> str:
        kind = f" of a {shape_dtype[2]}" if len(shape_dtype) > 2 else ""
        return f"{shape_dtype[1].name}{list(shape_dtype[0])}{kind}"

    lines = [
        f"{name}: saved {show(saved[name])}, wanted {show(wanted[name])}"
        for name in wanted
        if name in saved and saved[name] != wanted[name]
    ]
    lines += [f"{name}: wanted {show(wanted[name])}, not in the checkpoint" for name in wanted if name not in saved]
    lines += [f"{name}: saved {show(saved[name])}, not in this model" for name in saved if name not in wanted]
    if lines:
        shown = lines[:20] + ([f"… and {len(lines) - 20} more"] if len(lines) > 20 else [])
        raise CheckpointError(
            f"checkpoint {step} belongs to another model or optimizer; {len(lines)} leaves differ:\n  "
            + "\n  ".join(shown)
            + "\nUse the model and optimizer it was saved with, or another model_dir."
        )
