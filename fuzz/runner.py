"""Running cases: one in this process, or many in a child, so that a crash is a finding like any other."""

from __future__ import annotations

import faulthandler
import multiprocessing
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from itertools import count

import torch

from fuzz.case import Case, Kinds, Outcome, kind_of

_SILENT_SECONDS = 600  # of the clock: a child that is stuck for so long says where, and ends
CRASH = "crash"  # the kind of a case that ended its process


@dataclass
class Report:
    """Counts and findings of a run."""

    seed: int
    cases: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    findings: list[Outcome] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        self.cases[outcome.kind] += 1
        self.counts.update(outcome.counts)
        if outcome.finding:
            self.findings.append(outcome)

    def command(self, outcome: Outcome) -> str:
        """What repeats a case."""
        return f"python -m fuzz --seed {self.seed} --case {outcome.index}"

    def __str__(self) -> str:
        kinds = ", ".join(f"{number:,} {kind}" for kind, number in sorted(self.cases.items()))
        others = "".join(f", {number:,} {what}" for what, number in sorted(self.counts.items()))
        return f"{self.cases.total():,} cases ({kinds}){others}, {len(self.findings)} findings"


def run_case(kinds: Kinds, seed: int, index: int) -> Outcome:
    """One case, in this process. Every exception and every warning is a finding."""
    case = Case(seed, index)
    kind = kind_of(case, kinds)
    torch.set_num_threads(1)  # cases are small, and threads that wait for one another take most of the time
    finding = ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            kinds[kind][0](case)
    except Exception as error:
        facts = "".join(f"\n  {name}: {value}" for name, value in case.facts.items())
        frames = "".join(traceback.format_tb(error.__traceback__)[-4:])
        finding = f"{type(error).__name__}: {error}{facts}\n{frames}"
    return Outcome(index, kind, dict(case.counts), finding)


def run(
    kinds: Kinds,
    seed: int,
    proceed: Callable[[Report], bool],
    only: list[str],
    on_outcome: Callable[[Report, Outcome], None],
) -> Report:
    """Cases 0, 1, … while `proceed` says so, in a child; if it dies, that is a finding, and another one goes on."""
    report, indices = Report(seed), count()
    chosen = (index for index in indices if not only or kind_of(Case(seed, index), kinds) in only)
    context = multiprocessing.get_context("spawn")  # threads of torch do not survive a fork
    while proceed(report):
        with ProcessPoolExecutor(1, context) as child:
            alive = True
            while alive and proceed(report):
                index = next(chosen)
                try:
                    outcome = child.submit(_watched, kinds, seed, index).result()
                except BrokenProcessPool:
                    outcome, alive = Outcome(index, CRASH, {}, "the process ended."), False
                report.add(outcome)
                on_outcome(report, outcome)
    return report


def _watched(kinds: Kinds, seed: int, index: int) -> Outcome:
    faulthandler.enable()
    faulthandler.dump_traceback_later(_SILENT_SECONDS, exit=True)
    outcome = run_case(kinds, seed, index)
    faulthandler.cancel_dump_traceback_later()
    return outcome
