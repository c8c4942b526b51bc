"""Work counted instead of timed, so that a busy machine changes nothing."""

import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any


def calls(run: Callable[[], object]) -> int:
    """How many functions a call enters, Python's and those written in C: a loop over n things enters at least n."""
    entered = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal entered
        entered += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(None)
    return entered


def lines(run: Callable[[], object]) -> int:
    """How many lines of Python a call executes, those of functions that it calls included."""
    executed = 0

    def count(_frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal executed
        executed += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        run()
    finally:
        sys.settrace(before)
    return executed


def peak_bytes(run: Callable[[], object]) -> int:
    """The most bytes that Python and NumPy hold at once during a call, beyond what they held before."""
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
