"""Results of a benchmark as plain values: `Report.to_dict()` is what `resolvent bench operator --json` prints.

Null (None) is what was not measured, or does not apply.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise

import numpy as np

from resolvent.bench.measure import Seconds
from resolvent.bench.peers import Bound, Case
from resolvent.bench.record import PASSES, BenchRecord, Machine, Measurement, Missing, Pass

# Backward against forward: a backward sweep loads what the forward did, to recompute the weights, and reads and adds to
# as many gradients; five products of matrices against the forward's two.
_LOADS, _FLOPS = 3.0, 3.5


@dataclass(frozen=True)
class PassTiming:
    """Forward, or forward with backward.

    `ms` is the median over the rounds, `range_ms` the minimum and the maximum. `speedup` is the median of the
    yardstick over this one, `share` the time that the bound would take over the time it took.
    """

    ms: float
    range_ms: tuple[float, float]
    speedup: float | None
    share: float | None


@dataclass(frozen=True)
class Timing:
    """One case at one length.

    `peer` is None for the operator itself. `bound` says what the shares are of: loads out of L2, or matrix products.
    `memory` is the peak of forward with backward beyond the inputs, in multiples of the bytes of x.
    """

    case: str
    peer: str | None
    forward: PassTiming
    both: PassTiming | None
    bound: Bound | None
    memory: float | None
    note: str

    def of(self, which: Pass) -> PassTiming | None:
        return self.forward if which == "forward" else self.both


@dataclass(frozen=True)
class Length:
    """Everything at one n."""

    n: int
    timings: list[Timing]
    missing: list[Missing]


@dataclass(frozen=True)
class Trend:
    """Time against n: the factor per doubling between neighboring lengths, and the exponent e of the best c·n^e."""

    n: list[int]
    per_doubling: list[float]
    exponent: float


@dataclass(frozen=True)
class TimeGrowth:
    """How one case's time grows; there are at least two lengths."""

    case: str
    forward: Trend
    both: Trend | None


@dataclass(frozen=True)
class Report:
    """What was measured, and on what. `threads` are torch's and ours; `yardstick` is the first peer."""

    batch: int
    heads: int
    head_dim: int
    dtype: str
    backend: str
    threads: int
    rounds: int
    torch_version: str
    yardstick: str
    machine: Machine
    lengths: list[Length]
    growth: list[TimeGrowth]

    def to_dict(self) -> dict[str, object]:
        return asdict(self)

    def record(self) -> BenchRecord:
        """The same as a record on disk."""
        measurements = [
            self._measurement(timing, which, passed, length.n)
            for length in self.lengths
            for which in PASSES
            for timing in length.timings
            if (passed := timing.of(which)) is not None
        ]
        missing = [replace(case, reason=f"{length.n:,} tokens: {case.reason}") for length in self.lengths
                   for case in length.missing]  # fmt: skip
        shape = f"batch {self.batch}, {self.heads} heads of {self.head_dim}, {self.dtype}"
        return BenchRecord.new("operator", shape, self.rounds, self.threads, self.machine, measurements, missing)

    def _measurement(self, timing: Timing, which: Pass, passed: PassTiming, n: int) -> Measurement:
        least, most = passed.range_ms
        x_bytes = 4 * self.batch * self.heads * self.head_dim * n
        return Measurement(
            case=timing.case,
            peer=timing.peer is not None,
            workload=PASSES[which],
            n=n,
            tokens=self.batch * n,
            seconds=passed.ms / 1e3,
            least=least / 1e3,
            most=most / 1e3,
            share=passed.share,
            peak_bytes=None if timing.memory is None or which == "forward" else round(timing.memory * x_bytes),
        )


def timing(case: Case, own: Seconds, yardstick: Seconds | None, machine: Machine, memory: float | None) -> Timing:
    """A case's times against its yardstick and its bound."""
    least = _least_seconds(case, machine)
    both_factor = _LOADS if case.bound == "loads" else _FLOPS
    reference = yardstick or Seconds()
    return Timing(
        case=case.name,
        peer=case.peer,
        forward=_pass_timing(own.forward, reference.forward, least),
        both=_pass_timing(own.both, reference.both, both_factor * least) if own.both else None,
        bound=case.bound if least else None,
        memory=memory,
        note=case.note,
    )


def _least_seconds(case: Case, machine: Machine) -> float:
    """How long the forward's work takes at full speed; 0 if no bound is known."""
    speed = {"loads": machine.l2_gbs, "matmul": machine.matmul_gflops}
    return case.work / (speed[case.bound] * 1e9) if case.bound else 0.0


def _pass_timing(times: list[float], yardstick: list[float], least: float) -> PassTiming:
    middle = statistics.median(times)
    return PassTiming(
        ms=1e3 * middle,
        range_ms=(1e3 * min(times), 1e3 * max(times)),
        speedup=statistics.median(yardstick) / middle if yardstick else None,
        share=least / middle if least else None,
    )


def growth(lengths: Sequence[Length]) -> list[TimeGrowth]:
    """For every case that ran at two lengths or more."""
    cases = dict.fromkeys(timing.case for length in lengths for timing in length.timings)
    growths = []
    for case in cases:
        at = [(length.n, timing) for length in lengths for timing in length.timings if timing.case == case]
        if len(at) > 1:
            both = [(n, timing.both.ms) for n, timing in at if timing.both]
            forward = trend([(n, timing.forward.ms) for n, timing in at])
            growths.append(TimeGrowth(case, forward, trend(both) if len(both) > 1 else None))
    return growths


def trend(points: Sequence[tuple[int, float]]) -> Trend:
    """The growth of times given as (n, ms), n increasing."""
    factors = [(later / time) ** (1 / math.log2(m / n)) for (n, time), (m, later) in pairwise(points)]
    sizes, times = np.log(np.array(points, dtype=float)).T
    exponent = float(np.polyfit(sizes, times, 1)[0])
    return Trend([n for n, _ in points], factors, exponent)
