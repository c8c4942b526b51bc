"""Loads of hostile files in a process of their own: the errors that they raise, and the memory that they take."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.processes import run

MOST_MB = 200  # that any file may take before it is refused
HANG = 120  # seconds of the processor after which a process ends: all its files together take a few

# The peak of a process is reset before each load, where Linux allows that: peaks of the imports would hide others.
_CODE = """
import gc, json, re, resource, sys, time
from pathlib import Path
resource.setrlimit(resource.RLIMIT_CPU, ({hang}, {hang}))
{setup}

def memory(name):
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return int(re.search(name + r":\\s+(\\d+) kB", status.read_text())[1]) / 1024

for path in map(Path, json.loads(sys.stdin.read())):
    gc.collect()
    if Path("/proc/self/clear_refs").exists():
        Path("/proc/self/clear_refs").write_text("5")
    before, begin = memory("VmRSS"), time.process_time()
    try:
        {load}
        error = ["nothing", [], ""]
    except Exception as caught:
        error = [type(caught).__name__, [base.__name__ for base in type(caught).__mro__], str(caught)]
    print(json.dumps([*error, memory("VmHWM") - before, time.process_time() - begin]))
"""


@dataclass(frozen=True)
class Refusal:
    """What a load raised, and what that took. Seconds are of the processor, for people: no test looks at them."""

    kind: str
    bases: list[str]
    message: str
    megabytes: float
    seconds: float


def measured(setup: str, load: str, paths: Sequence[Path]) -> list[Refusal]:
    """Run `load` for each `path` after `setup`, whose memory does not count, all in one process."""
    code = _CODE.format(setup=setup, load=load, hang=HANG)
    done = run("-c", code, stdin=json.dumps([str(path) for path in paths]))
    assert done.returncode == 0, done.stderr[-2000:]
    return [Refusal(*json.loads(line)) for line in done.stdout.splitlines()]


def check_refused(setup: str, load: str, cases: Sequence[tuple[Path, str]]) -> None:
    """Each path raises a ValueError whose message is short and matches, in little memory."""
    refusals = measured(setup, load, [path for path, _ in cases])
    assert len(refusals) == len(cases)
    for (path, message), refusal in zip(cases, refusals, strict=True):
        assert "ValueError" in refusal.bases, f"{path}: {refusal.kind} {refusal.message}, expected {message}"
        assert re.search(message, refusal.message), f"{path}: {refusal.message}, expected {message}"
        assert refusal.megabytes < MOST_MB, f"{refusal.megabytes:.0f} MB before {refusal.message}"
        assert len(refusal.message) < 2000
