"""Sections of documents that are made from records of benchmarks, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from resolvent.analysis.profile import plural
from resolvent.bench.record import CALL, KINDS, ONE_TOKEN, PASSES, PASSIVE, PLAIN, BenchRecord, Kind, Measurement
from resolvent.errors import SettingError, closest
from resolvent.studies.render import markdown_table
from resolvent.studies.speed import factor, markdown, number, ratio, title, unit_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURE, FIGURE_TITLE = "figure", "generation and training steps of whole models: time and memory against length"
_NOT_DRAWN = (CALL,)  # timed for short prompts alone
# What a table with little room has of each kind: the workload, and the peer that it is compared with.
_CHOSEN: dict[Kind, tuple[str, str]] = {
    "operator": (PASSES["both"], "sdpa"),
    "decode": (ONE_TOKEN, "sdpa"),
    "generate": ("batch 1", "HF GPT-2, static"),
    "training": ("batch 1", "attention"),
}

_LENGTHS: dict[Kind, int] = {"generate": 3}  # rows for this many of the greatest lengths, where it is not one
_DEFAULT_OF = {"HF GPT-2, static": "HF GPT-2, dynamic"}


def section(records: Sequence[BenchRecord], name: str) -> str:
    """The text of a section."""
    if name not in _SECTIONS:
        names = ", ".join([*_SECTIONS, FIGURE])
        raise SettingError(f"unknown section '{name}' of benchmarks: expected {names}.{closest(name, _SECTIONS)}")
    return _SECTIONS[name](records) + "\n"


def published(records: Sequence[BenchRecord], kind: Kind) -> list[BenchRecord]:
    """The records of a kind: those of plain runs or, if there are none, all."""
    of_kind = [record for record in records if record.kind == kind]
    return [record for record in of_kind if record.host.wait_policy == PLAIN] or of_kind


def figure(records: Sequence[BenchRecord]) -> Figure:
    """Generation and training steps of the largest model: time and memory against length."""
    from resolvent.report.figures import panels_figure, record_panels

    panels = []
    for kind in KINDS[2:]:  # those of whole models
        for chosen in _largest(records, kind):
            panels += [panel for panel in record_panels(chosen) if panel.workload not in _NOT_DRAWN]
    if not panels:
        raise SettingError("expected records of generation or of training to draw, got none.")
    return panels_figure(panels)


def setup(records: Sequence[BenchRecord]) -> str:
    """Machine, versions, limits and rounds."""
    host, environment, limits = records[0].host, records[0].environment, records[0].limits
    packages = ", ".join(f"{name} {version}" for name, version in environment.packages.items() if name != "resolvent")
    commits = " and ".join(dict.fromkeys(str(record.environment.commit) for record in records))
    rounds = " or ".join(str(count) for count in sorted({record.rounds for record in records}))
    return "\n".join([
        f"- {host.cpu}, {environment.machine}; {', '.join(host.features)}; {plural(host.threads, 'thread')}.",
        f"- Python {environment.python}, {packages}; commit {commits}. Medians over {rounds} rounds.",
        f"- Measured limits: matrix products {limits.matmul_gflops:,.0f} GFLOP/s; loads {limits.l1_gbs:,.0f} GB/s from "
        f"L1, {limits.l2_gbs:,.0f} from L2, {limits.dram_gbs:,.0f} from memory.",
    ])  # fmt: skip


def of_kind(records: Sequence[BenchRecord], kind: Kind) -> str:
    """All tables of a kind of benchmark."""
    chosen = published(records, kind)
    return "\n\n".join(map(markdown, chosen)) if chosen else f"No records of {kind}."


def wait_policies(records: Sequence[BenchRecord]) -> str:
    """Plain runs against those whose waiting threads sleep, at the greatest length."""
    head = ("benchmark", "case", "plain", "passive", "plain ÷ passive", "× peer, plain", "× peer, passive")
    rows = []
    for plain in records:
        others = [each for each in records if _same_but_passive(plain, each)]
        if plain.host.wait_policy != PLAIN or not others:
            continue
        workload, peer = _CHOSEN[plain.kind]
        n, unit, passive = max(plain.lengths(workload), default=0), unit_of(plain), others[0]
        name = f"{plain.kind}, {title(plain, workload, n)}"
        for case, measured in plain.at(workload, n).items():
            other = passive.at(workload, n).get(case)
            if other is not None:
                times = (f"{number(unit.per_second * each.seconds)} {unit.symbol}" for each in (measured, other))
                ratios = (ratio(plain, measured, peer), ratio(passive, other, peer))
                slower = factor(measured.seconds / other.seconds)
                rows.append((name, case, *times, slower, *ratios))
                name = ""  # said once
    return markdown_table(head, rows) if rows else "No records with another wait policy."


def readme(records: Sequence[BenchRecord]) -> str:
    """Speedups over the peers, at the greatest lengths and for the largest model: a column per pattern.

    Of generation attention in the same engine has a column, too: what the engine brings is no merit of a pattern.
    """
    rows: dict[str, dict[str, str]] = {}
    for kind in KINDS:
        for record in _largest(records, kind):
            workload, peer = _CHOSEN[kind]
            for each in PASSES.values() if kind == "operator" else [workload]:
                for n in sorted(record.lengths(each))[-_LENGTHS.get(kind, 1) :]:
                    own_attention = kind == "generate"
                    ours = [m for m in record.at(each, n).values() if not m.peer]
                    ours = [m for m in ours if own_attention or m.case != "attention"]
                    rows[_label(record, each, n)] = {m.case: _ratios(record, m, peer) for m in ours}
    cases = list(dict.fromkeys(case for cells in rows.values() for case in cells))
    lines = [(label, *(cells.get(case, "") for case in cases)) for label, cells in rows.items()]
    host = records[0].host
    setting = f"{host.cpu}, {plural(host.threads, 'thread')}, float32, all cases alternating in one plain process"
    sizes = "".join(map(_sizes, _largest(records, "generate")))
    return f"Speedup on {setting}:\n\n{markdown_table(('', *cases), lines)}{sizes}"


def _sizes(record: BenchRecord) -> str:
    """A sentence with the parameters of every case of a model: the shape is the same, the size is not."""
    sizes = {
        m.case.partition(",")[0]: f"{m.parameters / 1e6:.1f} M" for m in record.measurements if m.parameters is not None
    }
    listed = ", ".join(f"{case} {size}" for case, size in sizes.items())
    note = "`attention` is GPT-2 in our code. Below 1 is slower; blank is not measured."
    return f"\n\nParameters of {record.shape}: {listed}. {note} Ratios move by a fifth from run to run."


def _ratios(record: BenchRecord, measured: Measurement, peer: str) -> str:
    """To the peer and, in brackets, to what most users of it have instead."""
    other = _DEFAULT_OF.get(peer)
    return ratio(record, measured, peer) + (f" ({ratio(record, measured, other)})" if other else "")


def _label(record: BenchRecord, workload: str, n: int) -> str:
    return {
        "operator": f"{workload}, {n:,} tokens, against SDPA",
        "decode": f"one more token after {n:,}, against SDPA",
        "generate": f"{record.shape} generating after {n:,}, against Hugging Face GPT-2 with a static cache "
        "(a dynamic one, its default)",
        "training": f"{record.shape} training on {n:,} tokens, against attention",
    }[record.kind]


def _largest(records: Sequence[BenchRecord], kind: Kind) -> list[BenchRecord]:
    """The record of a kind with the most parameters, if there is one."""
    return sorted(published(records, kind), key=_parameters)[-1:]


def _parameters(record: BenchRecord) -> int:
    return max(m.parameters or 0 for m in record.measurements)


def _same_but_passive(one: BenchRecord, other: BenchRecord) -> bool:
    same = (one.kind, one.shape, one.host.threads) == (other.kind, other.shape, other.host.threads)
    return same and other.host.wait_policy == PASSIVE


def _kind_section(kind: Kind) -> Callable[[Sequence[BenchRecord]], str]:
    return lambda records: of_kind(records, kind)


_SECTIONS: dict[str, Callable[[Sequence[BenchRecord]], str]] = {
    "setup": setup,
    **{kind: _kind_section(kind) for kind in KINDS},
    "wait-policy": wait_policies,
    "readme": readme,
}
