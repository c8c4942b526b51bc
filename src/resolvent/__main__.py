"""`python -m resolvent`, and the command `resolvent`, are the command line."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import NoReturn

INTERRUPTED = 130  # as shells say it: 128 and the number of the signal


class _Interrupt(BaseException):
    """Ctrl-C. Not a `KeyboardInterrupt`, which releases of click and typer answer differently."""


def main() -> None:
    """Run the command line. Ctrl-C ends it with one line, while its modules are imported, too."""
    try:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where a shell ignores it
            signal.signal(signal.SIGINT, _interrupt)
        from resolvent.cli import main as run

        run()
    except (_Interrupt, KeyboardInterrupt):
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # once more, and it ends without any ceremony
        print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)


def _interrupt(_: int, __: FrameType | None) -> NoReturn:
    raise _Interrupt


if __name__ == "__main__":
    main()
