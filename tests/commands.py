"""The command line as `python -m resolvent` runs it, but in this process, which has all its modules loaded already.

What belongs to a process of its own is tested in one: signals, encodings, folders that cannot be written, imports.
"""

import contextlib
import io
import os
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

from resolvent.__main__ import main


def command(*arguments: str, folder: Path | None = None, encoding: str = "utf-8") -> subprocess.CompletedProcess[str]:
    """From the arguments to the code that the process would end with, in this folder or another."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding=encoding) for _ in range(2))
    code, handler = 0, signal.getsignal(signal.SIGINT)
    try:
        with (
            patch.object(sys, "argv", ["resolvent", *arguments]),
            patch.dict(os.environ, COLUMNS="80"),  # as wide as what is no terminal, wherever tests are started
            contextlib.chdir(folder or Path.cwd()),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        signal.signal(signal.SIGINT, handler)
    said, errors = (
        (stream.flush(), stream.buffer.getvalue().decode(encoding, "surrogateescape"))[1] for stream in (out, err)
    )
    return subprocess.CompletedProcess(arguments, code, said, errors)
