"""What records of benchmarks show: a table for each workload, in a terminal or in a document. No torch here."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from resolvent.analysis.profile import plural
from resolvent.bench.record import CALL, PEERS, PER_PATTERN, BenchRecord, Kind, Measurement
from resolvent.studies.render import markdown_table
from resolvent.studies.study import TextTable

PEER_PREFIX = "HF GPT-2, "  # which columns leave out
NONE = "–"


class Unit(NamedTuple):
    """How a kind of benchmark gives its times."""

    symbol: str
    per_second: float
    heading: str


UNITS: dict[Kind, Unit] = {
    "operator": Unit("ms", 1e3, "ms"),
    "decode": Unit("µs", 1e6, "µs"),
    "generate": Unit("ms", 1e3, "ms per\ntoken"),
    "training": Unit("ms", 1e3, "ms per\nstep"),
}
_PEER = "GPT2LMHeadModel of transformers in the same shape"
_ABOUT: dict[Kind, tuple[str, ...]] = {
    "operator": (),
    "decode": (),
    "generate": (
        "A token is one more of every sequence. Caches are filled with random numbers, not by reading a prompt; "
        f"{CALL} reads its prompt: a call from beginning to end. Ragged: lengths from half of the number to all of it.",
        f"HF GPT-2: {_PEER}, with its dynamic cache, the default, or its static one. ×: times as fast as that.",
    ),
    "training": (
        "A step is forward, loss, backward and AdamW. peak: memory beyond the model and the optimizer's state.",
        f"attention: the same model on torch's fused attention. HF GPT-2: {_PEER}. ×: times as fast as that.",
    ),
}
_BOUNDS: dict[Kind, tuple[str, ...]] = {
    "operator": (
        "of bound, patterns: time to load ka, x, kb and y of every source of every token from L2 (3 times that with "
        "backward), over the measured time; more than 100 % if rows stay in L1. Of sdpa, paper and patterns that read "
        "every earlier token: time for 2·n²·D operations per head (paper, and dense: twice that; 3.5 times that with "
        "backward) at the speed of matrix products.",
    ),
    "decode": (),
    "generate": ("of bound: time to load all weights and what is read of caches from memory, over the measured time.",),
    "training": (
        "of bound: time for 6 operations per multiply-add of a forward pass, at the speed of matrix products, "
        "over the measured time.",
    ),
}
Cell = Callable[[Measurement], str]


def columns(record: BenchRecord) -> dict[str, Cell]:
    """What a table of the record has beside the names of cases, by heading."""
    unit = unit_of(record)
    scale, heading = unit.per_second, unit.heading
    shown: dict[str, Cell] = {
        heading: lambda m: number(scale * m.seconds),
        "least…\nmost": lambda m: f"{number(scale * m.least)}…{number(scale * m.most)}",
        "para-\nmeters": lambda m: NONE if m.parameters is None else f"{m.parameters / 1e6:.1f} M",
    }
    if record.kind == "generate":
        shown["ms per\n100 M"] = lambda m: NONE if m.parameters is None else number(1e11 * m.seconds / m.parameters)
    if record.kind == "training":
        shown["tokens\nper s"] = lambda m: f"{m.tokens / m.seconds:,.0f}"
    shown["cache,\nMiB"] = lambda m: _mebibytes(m.cache_bytes)
    shown["peak,\nMiB"] = lambda m: _mebibytes(m.peak_bytes)
    for peer in peers(record):
        shown[_peer_heading(peer)] = partial(_ratio_to, record, peer)
    shown["of\nbound"] = lambda m: NONE if m.share is None else f"{100 * m.share:.0f} %"
    return shown


def unit_of(record: BenchRecord) -> Unit:
    """Seconds where milliseconds would have five digits."""
    unit = UNITS[record.kind]
    if unit.symbol != "ms" or max(m.most for m in record.measurements) < 10:
        return unit
    return Unit("s", 1.0, f"s{unit.heading.removeprefix('ms')}")


def tables(record: BenchRecord) -> Iterator[tuple[str, TextTable]]:
    """For a terminal: a table for each workload and length, with its title."""
    for workload in record.workloads:
        for n in record.lengths(workload):
            yield title(record, workload, n), _table(record, list(record.at(workload, n).values()), with_n=False)


def title(record: BenchRecord, workload: str, n: int | None = None) -> str:
    length = (
        "" if n is None else f" after {n:,} tokens" if record.kind in ("decode", "generate") else f" on {n:,} tokens"
    )
    return f"{record.shape}, {workload}{length}"


def markdown(record: BenchRecord) -> str:
    """For a document: a table for each workload, then what could not run."""
    blocks = []
    for workload in record.workloads:
        table = _table(record, [m for m in record.measurements if m.workload == workload], with_n=True)
        blocks += [f"**{title(record, workload)}**", markdown_table(table.head, table.rows)]
    return "\n\n".join([*blocks, *not_measured(record)])


def notes(record: BenchRecord) -> list[str]:
    """What the columns of a table mean, and what could not run."""
    bounded, limits = any(m.share is not None for m in record.measurements), record.limits
    return [
        f"{unit_of(record).heading.replace(chr(10), ' ')}: median over {record.rounds} interleaved rounds; "
        f"{plural(record.host.threads, 'thread')}, OMP_WAIT_POLICY: {record.host.wait_policy}.",
        f"Limits: matrix products {limits.matmul_gflops:,.0f} GFLOP/s; loads {limits.l1_gbs:,.0f} GB/s from L1, "
        f"{limits.l2_gbs:,.0f} from L2, {limits.dram_gbs:,.0f} from memory.",
        *(f"{peer}: {PEERS[peer]}." for peer in peers(record) if peer in PEERS),
        *_ABOUT[record.kind],
        *(_BOUNDS[record.kind] if bounded else ()),
        *not_measured(record),
    ]


def not_measured(record: BenchRecord) -> list[str]:
    """A sentence for each reason, with all the cases that it keeps from running."""
    cases: dict[str, list[str]] = {}
    for each in record.missing:
        cases.setdefault(each.reason, []).append(each.case)
    return [f"Not measured: {'; '.join(names)} ({reason})." for reason, names in cases.items()]


def growth(record: BenchRecord) -> TextTable | None:
    """How times grow: the factor per doubling between neighboring lengths, and the exponent e of the best c·n^e."""
    rows = []
    for workload in record.workloads:
        own = [m for m in record.measurements if m.workload == workload]
        for case in dict.fromkeys(m.case for m in own):
            points = [(m.n, m.seconds) for m in own if m.case == case]
            if len(points) > 1:
                factors, exponent = trend(points)
                rows.append((workload, case, " ".join(f"{each:.2f}" for each in factors), f"n^{exponent:.2f}"))
    return TextTable(("growth of time", "case", "× per doubling", "power"), tuple(rows), names=2) if rows else None


def trend(points: Sequence[tuple[int, float]]) -> tuple[list[float], float]:
    """Of times given as (n, seconds), n increasing: the factors per doubling, and the exponent."""
    factors = [(later / time) ** (1 / math.log2(m / n)) for (n, time), (m, later) in pairwise(points)]
    sizes, times = np.log(np.array(points, dtype=float)).T
    return factors, float(np.polyfit(sizes, times, 1)[0])


def peers(record: BenchRecord) -> list[str]:
    """What cases are compared with; a peer that has a case for each pattern is there once."""
    return list(dict.fromkeys(_peer_of(m.case) for m in record.measurements if m.peer))


def _peer_of(case: str) -> str:
    first = case.partition(" ")[0]
    return first if first in PER_PATTERN else case


def speedup(record: BenchRecord, measured: Measurement, peer: str) -> float | None:
    """Times as fast as the peer, or as its case of the same pattern, which took turns with it."""
    name = f"{peer} {measured.case.removeprefix(f'{peer} ')}" if peer in PER_PATTERN else peer
    other = record.at(measured.workload, measured.n).get(name)
    return None if other is None else other.seconds / measured.seconds


def ratio(record: BenchRecord, measured: Measurement, peer: str) -> str:
    value = speedup(record, measured, peer)
    return NONE if value is None else factor(value)


def factor(value: float) -> str:
    return f"{value:,.0f}" if value >= 20 else f"{value:.1f}" if value >= 2 else f"{value:.2f}"


def number(value: float) -> str:
    """Three digits, or all before the point; two if it is less than one."""
    return f"{value:,.0f}" if value >= 100 else f"{value:#.3g}" if value >= 1 else f"{value:.2g}"


def _table(record: BenchRecord, measured: Sequence[Measurement], *, with_n: bool) -> TextTable:
    """Columns that would be empty are left out."""
    cells = {heading: [cell(m) for m in measured] for heading, cell in columns(record).items()}
    length = "after" if _preposition(record) == "after" else "tokens"
    named = {length: [f"{m.n:,}" for m in measured]} if with_n else {}
    named["case"] = [m.case for m in measured]
    kept = named | {heading: column for heading, column in cells.items() if set(column) != {NONE}}
    return TextTable(tuple(kept), tuple(zip(*kept.values(), strict=True)), names=len(named))


def _preposition(record: BenchRecord) -> str:
    """What n tokens are to it: those before the one that is timed, or those that are timed."""
    return "after" if record.kind in ("decode", "generate") else "on"


def _peer_heading(peer: str) -> str:
    """In two lines: "× dynamic", "× HF GPT-2"."""
    label = peer.removeprefix(PEER_PREFIX)
    first, space, last = label.partition(" ")
    return f"× {first}\n{last}" if space else f"×\n{label}"


def _ratio_to(record: BenchRecord, peer: str, measured: Measurement) -> str:
    return ratio(record, measured, peer)


def _mebibytes(count: int | None) -> str:
    return NONE if count is None else number(count / 2**20)
