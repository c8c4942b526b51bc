"""`python -m fuzz`: run random cases for a time or a number of them, or repeat one."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence

from fuzz import decoding, layers, mixing
from fuzz.case import Kinds, Outcome
from fuzz.runner import Report, run, run_case

KINDS: Kinds = {
    "mix": (mixing.mix, 6),
    "solve": (mixing.solve, 2),
    "extend": (decoding.extend, 4),
    "mixer": (layers.mixer, 2),
    "model": (layers.model, 1),
}


def main(arguments: Sequence[str] | None = None, kinds: Kinds = KINDS) -> int:
    """0 if nothing was found, 1 if something was."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="[default: 60]")
    parser.add_argument("--cases", type=int, help="however long they take, instead of --seconds")
    parser.add_argument("--seed", type=int, default=0, help="every case follows from it and its number [default: 0]")
    parser.add_argument("--case", type=int, help="run this one alone, in this process")
    parser.add_argument("--only", action="append", default=[], choices=list(kinds), help="kinds (repeatable)")
    options = parser.parse_args(arguments)
    if options.case is not None:
        outcome = run_case(kinds, options.seed, options.case)
        print(f"case {outcome.index}: {outcome.kind}, {outcome.counts}\n{outcome.finding or 'nothing found'}")
        return int(bool(outcome.finding))
    report = run(kinds, options.seed, _budget(options.cases, options.seconds), options.only, _show)
    print(f"seed {options.seed}: {report}")
    return int(bool(report.findings))


def _budget(cases: int | None, seconds: float) -> Callable[[Report], bool]:
    end = time.monotonic() + seconds
    if cases is not None:
        return lambda report: report.cases.total() < cases
    return lambda _: time.monotonic() < end


def _show(report: Report, outcome: Outcome) -> None:
    """A finding at once; for people, one line that is written over."""
    if sys.stderr.isatty():
        print(f"\r\x1b[2K{report}", end="\n" if outcome.finding else "", file=sys.stderr, flush=True)
    if outcome.finding:
        print(f"finding: {report.command(outcome)}\n{outcome.finding}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
