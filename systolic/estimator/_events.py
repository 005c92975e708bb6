"""The history of a run: one line of JSON per record in ``metrics.jsonl``, and the same scalars for TensorBoard.

``metrics.jsonl`` is the truth: it is what the summary page is drawn from and what a script reads. A resumed run cuts
what a killed run wrote beyond the step it resumes from, so that the file tells one history, that of the parameters.
"""

from __future__ import annotations

import json
import math
import os
import re
import time as clock
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from systolic._errors import InputError
from systolic._log import Notices, logger
from systolic._page import write_atomically

FILE_NAME = "metrics.jsonl"
TENSORBOARD_DIRECTORY = "tensorboard"

_KIND = re.compile(r"[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*")
_NOT_JSON = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def _plain(value: Any, name: str) -> Any:
    """A metric as JSON can hold it; NaN and infinity become the strings "nan", "inf" and "-inf"."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item, f"{name}/{key}") for key, item in value.items()}
    if not isinstance(value, (bool, int, float, str, list, tuple, type(None))) and hasattr(value, "tolist"):
        value = value.tolist()  # NumPy and JAX: an array or a scalar of any type
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{name}[{k}]") for k, item in enumerate(value)]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    raise InputError(
        f"metric {name!r} is a {type(value).__name__}; a record holds numbers, strings, and lists and dicts of them. "
        "Convert it to a number before it is logged."
    )


def _restored(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _restored(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_restored(item) for item in value]
    return _NOT_JSON.get(value, value) if isinstance(value, str) else value


def _parse(line: bytes) -> dict[str, Any] | None:
    """One record, or None for a line that is torn (a write cut short by a kill or a full disk)."""
    try:
        record = json.loads(line)
        whole = isinstance(record["step"], int) and isinstance(record["metrics"], dict) and "kind" in record
    except (ValueError, KeyError, TypeError):
        return None
    return record if whole else None


def read_events(directory: str | os.PathLike[str], kind: str | None = None) -> list[dict[str, Any]]:
    """The records of a run, oldest first; empty when there are none yet.

    Args:
        directory: the run folder.
        kind: only records of this kind.

    Returns:
        dicts with ``step`` (int), ``time`` (seconds since 1970), ``kind`` (str) and ``metrics`` (dict; NaN and infinity
        are floats again). A last line torn by a kill is left out silently, a torn line before it with a warning.
    """
    path = Path(directory) / FILE_NAME
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")
    records = []
    for number, line in enumerate(lines, start=1):
        record = _parse(line)
        if record is None:
            if line.strip() and number < len(lines):
                logger.warning("%s: line %d is not a whole record and is left out", path, number)
        elif kind is None or record["kind"] == kind:
            records.append({**record, "metrics": _restored(record["metrics"])})
    return records


def _cut(path: Path, last_step: int | None) -> None:
    """Drop torn lines, and records after ``last_step``; the file is replaced at once or not at all."""
    if not path.exists():
        return
    old = path.read_bytes()
    kept = []
    for line in old.split(b"\n"):
        record = _parse(line)
        if record is not None and (last_step is None or record["step"] <= last_step):
            kept.append(line + b"\n")
    new = b"".join(kept)
    if new != old:
        write_atomically(path, new)


class EventLog:
    """Appends records to ``metrics.jsonl`` and, for kinds that begin with "train" or "eval", to TensorBoard's files.

    Each record is one ``write`` of one whole line, in the kernel's hands when ``write`` returns: a killed process loses
    none. A full disk does not stop the run: one warning names the reason, and later records are tried again.

    Args:
        directory: the run folder; made if missing. TensorBoard's files lie in ``tensorboard/<kind>`` below it.
        resume_step: cut the records of steps after this one (0 for a fresh start); None keeps them all, as a separate
            evaluation does.
        tensorboard: also write TensorBoard's files.

    Raises:
        OSError: the folder or the file cannot be made.
    """

    def __init__(
        self, directory: str | os.PathLike[str], resume_step: int | None = None, *, tensorboard: bool = True
    ) -> None:
        self._directory = Path(directory)
        self._directory.mkdir(parents=True, exist_ok=True)
        self._path = self._directory / FILE_NAME
        _cut(self._path, resume_step)
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0), 0o666)
        self._open, self._torn = True, False
        self._resume_step, self._tensorboard = resume_step, tensorboard
        self._writers: dict[str, _Scalars] = {}
        self._notices = Notices()

    @property
    def path(self) -> Path:
        """Where ``metrics.jsonl`` is."""
        return self._path

    def write(self, step: int, kind: str, metrics: Mapping[str, Any], time: float | None = None) -> None:
        """Append one record.

        Args:
            step: training step the values belong to.
            kind: "train", "eval", "compile" or another; letters, digits, "_", "-", and "/" between parts.
            metrics: name → number, NumPy or JAX scalar or array, string, or lists and dicts of them.
            time: seconds since 1970; now, if not given.

        Raises:
            InputError: a kind that cannot name a folder, or a metric that is none of the above.
            ValueError: the log is closed.
        """
        if not self._open:
            raise ValueError(f"EventLog.write: the log of {self._directory} is closed")
        if not _KIND.fullmatch(kind):
            raise InputError(f"kind is {kind!r}; wanted letters, digits, '_' and '-', with '/' between parts")
        time = clock.time() if time is None else time
        plain = {str(name): _plain(value, str(name)) for name, value in metrics.items()}
        record = {"step": int(step), "time": round(time, 3), "kind": kind, "metrics": plain}
        line = json.dumps(record, allow_nan=False, ensure_ascii=False).encode() + b"\n"
        try:
            self._append(line)
            if self._tensorboard and kind.startswith(("train", "eval")):
                self._scalars(kind).write(int(step), time, dict(_scalars_of(plain)))
        except OSError as error:
            self._notices.give(f"metrics are not being written to {self._directory}: {error.strerror or error}")

    def _append(self, line: bytes) -> None:
        if self._torn:  # a part of an earlier line may be in the file: keep it from spoiling this one
            line = b"\n" + line
        self._torn = os.write(self._file, line) < len(line)
        if self._torn:
            raise OSError(0, "the disk took a part of a line only; it may be full")

    def _scalars(self, kind: str) -> _Scalars:
        if kind not in self._writers:
            self._writers[kind] = _Scalars(self._directory / TENSORBOARD_DIRECTORY / kind, self._resume_step)
        return self._writers[kind]

    def flush(self) -> None:
        """Hand TensorBoard's records to the kernel too (they are otherwise, at most a second late)."""
        for writer in self._writers.values():
            writer.flush()

    def close(self) -> None:
        """Close all files; a second call does nothing."""
        if not self._open:
            return
        self._open = False
        os.close(self._file)
        try:
            for writer in self._writers.values():
                writer.close()
        except OSError as error:
            self._notices.give(f"TensorBoard's files in {self._directory} are incomplete: {error.strerror or error}")

    def __enter__(self) -> EventLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _scalars_of(metrics: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Numbers among (nested) metrics, names joined by "/"."""
    for name, value in metrics.items():
        if isinstance(value, dict):
            yield from _scalars_of(value, f"{prefix}{name}/")
        elif isinstance(value, (int, float)):
            yield prefix + name, float(value)
        elif isinstance(value, str) and value in _NOT_JSON:
            yield prefix + name, _NOT_JSON[value]


class _Scalars:
    """One TensorBoard event file, written in the caller's thread.

    tensorboardX's ``SummaryWriter`` puts a process-shared queue and a thread between; its own file writer below that
    needs neither, so nothing is left to join or to lose when the process forks or ends.
    """

    def __init__(self, directory: Path, resume_step: int | None) -> None:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto import event_pb2, summary_pb2

        directory.mkdir(parents=True, exist_ok=True)
        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        # The name holds the time in whole seconds; two runs within one second must not share a file.
        self._writer = EventsWriter(str(directory / "events"), f".{os.getpid()}.{clock.monotonic_ns()}")
        self._flushed = 0.0
        if resume_step is not None:  # TensorBoard then drops what an earlier, killed run wrote from this step on
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._writer.write_event(self._event(wall_time=clock.time(), step=resume_step + 1, session_log=start))

    def write(self, step: int, time: float, scalars: Mapping[str, float]) -> None:
        values = [self._summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
        self._writer.write_event(self._event(wall_time=time, step=step, summary=self._summary(value=values)))
        if clock.monotonic() - self._flushed >= 1.0:
            self.flush()

    def flush(self) -> None:
        self._writer.flush()
        self._flushed = clock.monotonic()

    def close(self) -> None:
        self._writer.close()
