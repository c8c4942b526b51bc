"""Running cases: one in this process, or many in a child, so that a crash or a hang is a finding like any other."""

from __future__ import annotations

import multiprocessing
import resource
import signal
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType

from numba.core.compiler_lock import global_compiler_lock

from fuzz.case import Case, Fuzzer, Outcome

CPU_SECONDS = 10  # a case that takes longer is a finding
_SILENT_SECONDS = 600  # of the clock, for a child that is stuck where no signal reaches it
_MEMORY = 4 << 30  # bytes of address space that a case may take
CRASH = "crash"  # the kind of a case that ended its process


class TooSlow(BaseException):  # not an Exception: no reader may take it for a damaged file
    """A case took too much CPU time."""


@dataclass
class Report:
    """Counts and findings of a run."""

    fuzzer: str
    seed: int
    cases: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    findings: list[Outcome] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, outcome: Outcome) -> None:
        self.cases[outcome.kind] += 1
        self.counts.update(outcome.counts)
        if outcome.finding:
            self.findings.append(outcome)

    def command(self, outcome: Outcome) -> str:
        """What repeats a case."""
        return f"python -m fuzz {self.fuzzer} --seed {self.seed} --case {outcome.index}"

    def summary(self) -> str:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(self.cases.items()))
        others = "".join(f", {count:,} {what}" for what, count in sorted(self.counts.items()))
        return f"{self.fuzzer}: {self.cases.total():,} cases ({kinds}){others}, {len(self.findings)} findings"

    def to_dict(self) -> dict[str, object]:
        findings = [
            {"case": f.index, "kind": f.kind, "command": self.command(f), "finding": f.finding} for f in self.findings
        ]
        return {"fuzzer": self.fuzzer, "seed": self.seed, "seconds": round(self.seconds, 1), "cases": dict(self.cases),
                "counts": dict(self.counts), "findings": findings}  # fmt: skip


def run_case(fuzzer: Fuzzer, seed: int, index: int, *, again: bool = False) -> Outcome:
    """One case, in this process."""
    case = Case(seed, fuzzer.name, index)
    kind = fuzzer.kind(case)
    fuzzer.prepare()
    finding = ""
    try:
        with _limited(), warnings.catch_warnings():
            warnings.simplefilter("error")
            fuzzer.kinds[kind][0](case)
    except TooSlow as error:
        if not again:  # the first time may have loaded or compiled something
            return run_case(fuzzer, seed, index, again=True)
        finding = _described(error, case)
    except Exception as error:
        finding = _described(error, case)
    return Outcome(index, kind, dict(case.counts), finding)


def _described(error: BaseException, case: Case) -> str:
    facts = "".join(f"\n  {name}: {value}" for name, value in case.facts.items())
    return f"{type(error).__name__}: {error}{facts}\n{_frames(error)}"


def run(
    fuzzer: Fuzzer,
    seed: int,
    proceed: Callable[[Report], bool],
    only: tuple[str, ...] = (),
    on_outcome: Callable[[Report], None] = lambda _: None,
) -> Report:
    """Cases 0, 1, … while `proceed` says so, in a child; if it dies, that is a finding, and another one goes on."""
    report, began, first = Report(fuzzer.name, seed), time.monotonic(), 0
    while proceed(report):
        child = _Child(fuzzer, seed, first, only)
        try:
            while proceed(report):
                outcome = child.next()
                report.add(outcome)
                report.seconds = time.monotonic() - began
                on_outcome(report)
                first = outcome.index + 1
                if outcome.kind == CRASH:
                    break
        finally:
            child.close()
    return report


class _Child:
    """A process that runs one case after another: it announces each, then sends its outcome."""

    def __init__(self, fuzzer: Fuzzer, seed: int, first: int, only: tuple[str, ...]) -> None:
        context = multiprocessing.get_context("spawn")  # threads of torch do not survive a fork
        self.pipe, other = context.Pipe(duplex=False)
        self.process = context.Process(target=_work, args=(other, fuzzer, seed, first, only), daemon=True)
        self.process.start()
        other.close()
        self.current = first

    def next(self) -> Outcome:
        reason = f"no answer for {_SILENT_SECONDS} seconds"
        try:
            while self.pipe.poll(_SILENT_SECONDS):
                message: int | Outcome = self.pipe.recv()
                if isinstance(message, Outcome):
                    return message
                self.current = message
        except EOFError:
            self.process.join()
            reason = f"the process ended with exit code {self.process.exitcode}"
        return Outcome(self.current, CRASH, {}, f"{reason}.")

    def close(self) -> None:
        """Let it end its case and remove its files, but do not wait for long."""
        self.pipe.close()
        self.process.join(60)
        self.process.kill()
        self.process.join()


def _work(pipe: Connection, fuzzer: Fuzzer, seed: int, first: int, only: tuple[str, ...]) -> None:
    with suppress(BrokenPipeError, KeyboardInterrupt):  # the parent has seen enough
        for index in count(first):
            if not only or fuzzer.kind(Case(seed, fuzzer.name, index)) in only:
                pipe.send(index)
                pipe.send(run_case(fuzzer, seed, index))


@contextmanager
def _limited() -> Iterator[None]:
    """`TooSlow` after some CPU seconds of this process, MemoryError beyond some memory."""

    def stop(_signal: int, _frame: FrameType | None) -> None:
        if global_compiler_lock.is_locked():  # kernels that are compiled for the first time have all time they need
            signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
            return
        raise TooSlow(f"more than {CPU_SECONDS} seconds of CPU time")

    previous = signal.signal(signal.SIGPROF, stop)
    memory = resource.getrlimit(resource.RLIMIT_AS)
    most = _address_space() + _MEMORY
    if memory[1] == resource.RLIM_INFINITY or most < memory[1]:
        resource.setrlimit(resource.RLIMIT_AS, (most, memory[1]))
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)
        resource.setrlimit(resource.RLIMIT_AS, memory)


def _address_space() -> int:
    """Bytes that this process has mapped; a great deal where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except OSError:
        return 1 << 40


def _frames(error: BaseException) -> str:
    """The last frames of a traceback."""
    return "".join(traceback.format_tb(error.__traceback__)[-4:])
