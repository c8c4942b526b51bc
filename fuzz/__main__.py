"""`python -m fuzz`: run fuzzers for a time or a number of cases, or repeat one case."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence

from fuzz.case import Fuzzer
from fuzz.fuzzers import FUZZERS
from fuzz.runner import Report, run, run_case


def main(arguments: Sequence[str] | None = None, fuzzers: dict[str, Fuzzer] = FUZZERS) -> int:
    """0 if nothing was found, 1 if something was."""
    options = _parse(arguments, fuzzers)
    names = options.fuzzer or list(fuzzers)
    if options.case is not None:
        return _repeat(fuzzers[names[0]], options.seed, options.case)
    print(f"seed {options.seed}", file=sys.stderr)
    reports = []
    for name in names:
        proceed = _budget(options.cases, options.seconds / len(names))
        report = run(fuzzers[name], options.seed, proceed, tuple(options.only), _progress)
        _end_line()
        print(report.summary(), file=sys.stderr)
        for finding in report.findings:
            print(f"\nfinding: {report.command(finding)}\n{finding.finding}", file=sys.stderr)
        reports.append(report)
    if options.json:
        print(json.dumps([report.to_dict() for report in reports], indent=1))
    return int(any(report.findings for report in reports))


def _parse(arguments: Sequence[str] | None, fuzzers: dict[str, Fuzzer]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    kinds = {kind: name for name, fuzzer in fuzzers.items() for kind in fuzzer.kinds}
    parser.add_argument("fuzzer", nargs="*", choices=[[], *fuzzers], help="which of them [default: all]")
    parser.add_argument("--seconds", type=float, default=60.0, help="shared by the fuzzers [default: 60]")
    parser.add_argument("--cases", type=int, help="of each fuzzer, however long they take, instead of --seconds")
    parser.add_argument("--seed", type=int, default=0, help="every case follows from it and its number [default: 0]")
    parser.add_argument("--case", type=int, help="run this one alone, in this process")
    parser.add_argument("--only", action="append", default=[], choices=list(kinds), help="kinds (repeatable)")
    parser.add_argument("--json", action="store_true", help="print a summary as JSON")
    options = parser.parse_args(arguments)
    if options.only and not options.fuzzer:
        options.fuzzer = list(dict.fromkeys(kinds[kind] for kind in options.only))
    if options.case is not None and len(options.fuzzer) != 1:
        parser.error(f"--case needs one fuzzer: expected {' or '.join(fuzzers)}.")
    if foreign := [kind for kind in options.only if kinds[kind] not in options.fuzzer]:
        parser.error(f"--only {foreign[0]} is a kind of the fuzzer '{kinds[foreign[0]]}', which is not asked for.")
    return options


def _repeat(fuzzer: Fuzzer, seed: int, index: int) -> int:
    outcome = run_case(fuzzer, seed, index)
    print(f"case {index}: {outcome.kind}, {dict(outcome.counts)}\n{outcome.finding or 'nothing found'}")
    return int(bool(outcome.finding))


def _budget(cases: int | None, seconds: float) -> Callable[[Report], bool]:
    end = time.monotonic() + seconds
    if cases is not None:
        return lambda report: report.cases.total() < cases
    return lambda _: time.monotonic() < end


def _progress(report: Report) -> None:
    """One line that is written over, for people only."""
    if sys.stderr.isatty():
        print(f"\r\x1b[2K{report.seconds:5.0f} s  {report.summary()}", end="", file=sys.stderr, flush=True)


def _end_line() -> None:
    if sys.stderr.isatty():
        print("\r\x1b[2K", end="", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
