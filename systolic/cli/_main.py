"""What becomes of a command: its exit status, and a message for each way in which it can end early.

Exit status: 0 done; 1 a check found something that does not compile or fit, or the doctor found a problem; 2 bad input,
with its message on stderr, or a check could not tell; 130 interrupted; 143 told to end. A bug of ours shows its traceback, and ends with 1.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Iterator, Sequence
from types import FrameType

from systolic._errors import SystolicError
from systolic.cli._output import complain, discard_stdout, flush_stdout, open_streams
from systolic.cli._parser import parse
from systolic.cli._user_errors import is_users, users_part


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status. ``arguments`` are those of the process by default."""
    if not open_streams():
        complain("systolic: error: stdout is closed; send it somewhere, as in > /dev/null")
        return 2
    try:
        options = parse(arguments)
    except SystemExit as ended:  # --help, --version, or a refusal that the parser has told
        if not ended.code and (status := _end("systolic", 0)):
            return status
        raise
    logging.basicConfig(level=logging.INFO if options.debug else logging.WARNING, format="note: %(message)s")
    command = f"systolic {options.command}"
    try:
        with _told_to_end(options.command):
            return _end(command, int(options.run(options) or 0))
    except SystolicError as error:
        if options.debug:
            raise
        return _refused(command, str(error), error)
    except _ToldToEnd:
        complain(f"{command}: told to end (SIGTERM)")
        return 128 + signal.SIGTERM
    except SystemExit as ended:  # of training, which has saved before it ends
        if ended.code != 128 + signal.SIGTERM:
            raise
        complain(f"{command}: told to end (SIGTERM); what was trained is saved where there is a model_dir")
        return 128 + signal.SIGTERM
    except KeyboardInterrupt:
        if options.debug:
            raise
        complain(f"{command}: interrupted")
        return 128 + signal.SIGINT
    except BrokenPipeError:  # whoever read our output has gone, as `head` does
        discard_stdout()
        return 0
    except Exception as error:
        if options.debug or not is_users(error):
            raise
        return _refused(command, f"{type(error).__name__}: {error}", error)


def _refused(command: str, message: str, error: BaseException) -> int:
    complain(f"{command}: error: {message}")
    if part := users_part(error):
        complain(f"{part}\n(--debug shows the frames of libraries too)")
    discard_stdout()
    return 2


def _end(command: str, status: int) -> int:
    """``status``, unless what was printed cannot be written, which often shows in the last flush only."""
    try:
        flush_stdout()
    except BrokenPipeError:
        discard_stdout()
    except SystolicError as error:
        discard_stdout()
        complain(f"{command}: error: {error}")
        return 2
    return status


class _ToldToEnd(BaseException):
    """SIGTERM: everything unwinds as for Ctrl-C, so that nothing is left behind."""


@contextlib.contextmanager
def _told_to_end(command: str) -> Iterator[None]:
    """SIGTERM unwinds the body; training has its own answer to it (save, then stop), and keeps it."""
    if command == "train" or threading.current_thread() is not threading.main_thread():
        yield
        return

    def unwind(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, former)  # a second one does not wait for what unwinds
        raise _ToldToEnd

    former = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, unwind)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)
