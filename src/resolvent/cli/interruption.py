"""Ctrl-C and polite signals during training: the first asks the run to stop with a checkpoint, the second ends it."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP")  # Ctrl-C; a scheduler, or kill; a terminal that is closed
_COMMAND = "resolvent"
_TORCHRUN = "TORCHELASTIC_RUN_ID"  # in the environment of processes that torchrun started


class Interruption:
    """What has been received so far, and the command that resumes."""

    def __init__(self, resume: str) -> None:
        self.resume = resume
        self.received: signal.Signals | None = None
        self.saved = False  # all steps: then a signal has nothing to wait for

    def nothing_left(self) -> None:
        """All steps are saved."""
        self.saved = True

    @property
    def exit_code(self) -> int:
        """As shells say it: 128 and the number of the signal."""
        return 128 + (self.received or signal.SIGINT)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Receive signals in here, but for those that this process was started to ignore."""
        numbers = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]
        if threading.current_thread() is not threading.main_thread():  # where Python allows no handlers
            numbers = []
        before = {number: signal.getsignal(number) for number in numbers}
        before = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}
        for number in before:
            signal.signal(number, self._receive)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _receive(self, number: int, _: FrameType | None) -> None:
        if self.received is None and not self.saved:
            self.received = signal.Signals(number)
            again = "" if _TORCHRUN in os.environ else "; once more to stop at once"
            _say(f"{self.received.name}: stopping after this step, with a checkpoint{again}")
        elif _TORCHRUN not in os.environ:  # which hands each signal on to its processes, and Ctrl-C reaches them twice
            self.received = signal.Signals(number)
            state = "all steps are done, and saved; to evaluate" if self.saved else "to resume from the last checkpoint"
            _say(f"stopped at once; {state}:\n  {self.resume}")
            raise SystemExit(self.exit_code)


def _say(message: str) -> None:
    """Not by print, which a signal may have come in the middle of; nor to a terminal that is gone."""
    if os.environ.get("RANK", "0") == "0":
        with suppress(OSError):
            clear = "\r\x1b[2K" if sys.stderr.isatty() else ""
            os.write(2, f"{clear}{message}\n".encode(sys.stderr.encoding or "ascii", sys.stderr.errors or "replace"))


def command_line(arguments: Sequence[str], out: Path) -> str:
    """The command that this process runs, with its folder named: `resolvent train … --out FOLDER`."""
    named = any(word == "--out" or word.startswith("--out=") for word in arguments)
    words = [*arguments[1:], *([] if named else ["--out", str(out)])]
    if _TORCHRUN in os.environ:  # whose own options nobody here knows
        return f"torchrun … -m {shlex.join([_COMMAND, *words])}"
    return shlex.join([*_program(arguments[0]), *words])


def _program(script: str) -> list[str]:
    """How this process was started, in words that the shell understands when they are pasted."""
    if Path(script).name == _COMMAND:
        return [_name_or_path(_COMMAND, script)]
    return [_name_or_path("python", sys.executable), "-m", _COMMAND]


def _name_or_path(name: str, path: str) -> str:
    """The name, if a shell finds this very file by it; otherwise its path, as in an environment that is not active."""
    command = path if path == name else shutil.which(name)
    return name if command is not None and Path(command).absolute() == Path(path).absolute() else path
