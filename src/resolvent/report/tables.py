"""Tables for the terminal: profiles, benchmarks and pattern families."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from resolvent.analysis import Profile, growth
from resolvent.analysis.comparison import congestion_and_least, hops_and_least
from resolvent.analysis.lower_bounds import NEARBY
from resolvent.analysis.profile import describe_number
from resolvent.patterns import FAMILIES, MODIFIERS, Pattern, pattern

if TYPE_CHECKING:  # which need torch
    from resolvent.bench.decode import DecodeReport, Position
    from resolvent.bench.results import Length, PassTiming, Report


def comparison(profiles: Sequence[Profile]) -> Table:
    """The theory half of the paper's Table 1, complete."""
    n = profiles[0].n
    table = Table(
        title=f"n = {n:,} tokens: reads, cache, hops and congestion",
        box=box.SIMPLE_HEAD,
        padding=0,  # the paper's nine fit into 80 columns
    )
    table.add_column("structure\n[dim]growth is[/dim]", overflow="fold")
    for name in ("reads\n", "cache\n", "max hops\n[dim](least)[/dim]", "mean\n", "congestion\n[dim](least)[/dim]"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("nearby\n", justify="right", no_wrap=True)
    for profile in profiles:
        law, unreachable = profile.growth, profile.unreachable_pairs > 0
        table.add_row(
            Text.assemble((str(profile.pattern).replace("/", "/\n"), "bold"), "\n", (law.basis, "dim")),
            _cell(f"{profile.reads_per_token.max:,}", law.reads_per_token),
            _cell(f"{profile.cache_slots:,}", law.cache_slots),
            _cell(hops_and_least(profile), "" if unreachable else law.max_hops),
            f"{profile.mean_hops:,.2f}" + ("*" if unreachable else ""),
            _cell(congestion_and_least(profile), "" if unreachable else law.congestion),
            describe_number(profile.congestion_nearby),
        )
    notes = [
        "(least): of any pattern with as many slots that connects every pair.",
        "slots × congestion ≥ n - 1 in every row and for (least).",
        f"nearby: the largest lower bound on congestion within {NEARBY} tokens of n.",
    ]
    if any(profile.unreachable_pairs for profile in profiles):
        notes.append("∞ some pairs have no path.   * over the pairs with a path.")
    if any(profile.congestion is None for profile in profiles):
        notes.append("– copying n tokens takes 2n positions, and the table has fewer.")
    table.caption = "\n".join(notes)
    return table


def speeds(report: Report, length: Length) -> Table:
    """A benchmark at one length: milliseconds, their range, speedup and share of the bound."""
    shape = f"batch {report.batch}, {report.heads} heads of {report.head_dim}, {report.dtype}"
    table = Table(
        title=f"n = {length.n:,} tokens, {shape}, {report.threads} threads",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.add_column("case", style="bold", no_wrap=True)
    for name in ("forward,\nms", "\n×", "of\nbound", "with back-\nward, ms", "\n×", "of\nbound"):
        table.add_column(name, justify="right", no_wrap=True)
    with_memory = any(timing.memory is not None for timing in length.timings)
    if with_memory:
        table.add_column("memory,\n× x", justify="right", no_wrap=True)
    for timing in length.timings:
        cells = [*_pass_cells(timing.forward), *_pass_cells(timing.both)]
        memory = [_number(timing.memory, "{:,.1f}")] if with_memory else []
        table.add_row(escape(timing.case), *cells, *memory)
    return table


def steps(report: DecodeReport, position: Position) -> Table:
    """Decoding at one position: microseconds per token, and the size of the cache."""
    shape = f"batch {report.batch}, {report.heads} heads of {report.head_dim}, {report.dtype}"
    table = Table(
        title=f"one more token after {position.n:,}, {shape}, {report.threads} threads",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.add_column("case", style="bold", no_wrap=True)
    for name in ("µs", "least…most", "×", "cache, KiB"):
        table.add_column(name, justify="right", no_wrap=True)
    for step in position.steps:
        least, most = step.range_us
        cells = [f"{step.us:,.0f}", f"{least:,.0f}…{most:,.0f}", f"{step.speedup:,.1f}"]
        table.add_row(escape(step.case), *cells, f"{step.cache_bytes / 1024:,.0f}")
    return table


def speed_growth(report: Report) -> Table:
    """How the times of a benchmark grow: per doubling between lengths, and as a power of n."""
    table = Table(title="growth of time", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("case", style="bold", no_wrap=True)
    for name in ("forward, × per doubling", "power", "with backward, × per doubling", "power"):
        table.add_column(name, justify="right")
    for case in report.growth:
        cells = []
        for trend in (case.forward, case.both):
            cells.append(" ".join(f"{factor:.2f}" for factor in trend.per_doubling) if trend else "–")
            cells.append(f"n^{trend.exponent:.2f}" if trend else "–")
        table.add_row(escape(case.case), *cells)
    return table


def speed_notes(report: Report) -> str:
    """Explain the columns of a benchmark, and give the measured limits of the machine."""
    machine, notes = report.machine, []
    timings = [timing for length in report.lengths for timing in length.timings]
    compared = report.yardstick != "none"
    notes.append(
        f"ms: median and range over {report.rounds} interleaved rounds."
        + (f"  ×: speedup over {report.yardstick}{_own_pattern(report)}." if compared else "")
    )
    notes.append(
        f"machine, {report.threads} threads: matmul {machine.matmul_gflops:.0f} GFLOP/s; loads "
        f"{machine.l1_gbs:.0f} GB/s from L1, {machine.l2_gbs:.0f} from L2, {machine.dram_gbs:.0f} from memory."
    )
    notes.append(
        "of bound, patterns: time to load ka, x, kb and y of every source of every token from L2 (3 times that with "
        "backward), over the measured time; more than 100% if rows stay in L1."
    )
    if any(timing.bound == "matmul" for timing in timings):
        notes.append(
            "of bound, sdpa and paper: time for 2·n²·D operations per head (paper: twice that; 3.5 times that with "
            "backward) at the matmul speed, over the measured time."
        )
    if any(timing.memory is not None for timing in timings):
        notes.append("memory: peak of forward and backward beyond the inputs, gradients included, in multiples of x.")
    notes += _by_cases([(timing.note, timing.case) for timing in timings])
    missing = [
        (f"not available at n = {length.n:,}, {case.reason}", case.case)
        for length in report.lengths
        for case in length.missing
    ]
    return "\n".join(notes + _by_cases(missing))


def _by_cases(notes: Sequence[tuple[str, str]]) -> list[str]:
    """One line per distinct note, from (note, case) pairs, with all cases that it applies to."""
    cases: dict[str, dict[str, None]] = {}
    for note, case in notes:
        if note:
            cases.setdefault(note, {})[case] = None
    return [f"{', '.join(names)}: {note}." for note, names in cases.items()]


def _own_pattern(report: Report) -> str:
    """If the yardstick depends on the pattern, its cases are named after the pattern."""
    names = [timing.case for length in report.lengths for timing in length.timings]
    names += [missing.case for length in report.lengths for missing in length.missing]
    return "" if report.yardstick in names else " on the same pattern"


def _pass_cells(timing: PassTiming | None) -> tuple[str, str, str]:
    if timing is None:
        return "–", "–", "–"
    least, most = (_milliseconds(value) for value in timing.range_ms)
    times = f"{_milliseconds(timing.ms)}\n[dim]{least}…{most}[/dim]"
    return times, _number(timing.speedup, "{:.1f}"), _number(timing.share, "{:.0%}")


def _milliseconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)


def families(n: int) -> list[Table]:
    """All pattern families, each with a drawing and its cost; those of others with their source and claim."""
    return [_own_families(n), _published_families(n)]


def _own_families(n: int) -> Table:
    table = _family_table(f"pattern families (costs at n = {n:,})", "a token reads")
    table.caption = "■ A and B   □ A only   ◆ B only\n" + "\n".join(
        [
            *(f"append {name}: {meaning}" for name, meaning in MODIFIERS.items()),
            "A/B: the A of the one, the B of the other",
        ]
    )
    for family in FAMILIES.values():
        if not family.source:
            example = f"\n[dim]e.g.[/dim] {escape(_short(family.sample))}" if family.argument else ""
            meaning = Text.assemble(family.meaning, ("\nclaim: " + family.claim if family.claim else "", "dim"))
            table.add_row(escape(family.signature) + example, *_family_cells(pattern(family.sample), meaning, n))
    for example in ("exponential+cache", "quadratic+cache"):
        meaning = Text("the same, rounded to what the previous token held")
        table.add_row(example, *_family_cells(pattern(example), meaning, n))
    meaning = Text("two patterns: A reads every past position, B feeds back the previous output")
    table.add_row("attention/first-order", *_family_cells(pattern("attention/first-order"), meaning, n))
    return table


def _published_families(n: int) -> Table:
    table = _family_table(f"published by others (costs at n = {n:,})", "a token reads, by whom, and their claim")
    table.caption = "their reads, recurrent like all families; append +attention for no feedback"
    for family in FAMILIES.values():
        if family.source:
            example = f"\n[dim]e.g.[/dim]\n{escape(family.sample)}" if family.argument else ""
            meaning = Text.assemble(
                family.meaning, (f"\n{family.source}", "italic"), (f"\nclaim: {family.claim}", "dim")
            )
            table.add_row(escape(family.signature) + example, *_family_cells(pattern(family.sample), meaning, n))
    return table


def _family_table(title: str, meaning: str) -> Table:
    table = Table(title=title, caption_justify="left", box=box.SIMPLE_HEAD, show_lines=True, padding=(0, 1, 0, 0))
    table.add_column("spelling", no_wrap=True, style="bold")
    table.add_column("picture", no_wrap=True)
    table.add_column(meaning)
    table.add_column("reads", justify="right", no_wrap=True)
    table.add_column("cache", justify="right", no_wrap=True)
    return table


def _family_cells(p: Pattern, meaning: Text, n: int) -> tuple[str | Text, ...]:
    """A drawing, the meaning, reads and slots; those of a table at its own length, where it has no growth."""
    picture = "\n".join(p.draw(min(8, p.limit or 8)).splitlines()[1:])
    if p.limit is not None:
        return Text(picture), meaning, f"{p.widest_row(p.limit):,}", f"{p.slots(p.limit):,}"
    law = growth(p)
    reads = f"{p.widest_row(n):,}\n[dim]{law.reads_per_token}[/dim]"
    return Text(picture), meaning, reads, f"{p.slots(n):,}\n[dim]{law.cache_slots}[/dim]"


def _short(spelling: str) -> str:
    return spelling if len(spelling) <= 20 else f"{spelling[:16]}…"


def _cell(value: str, law: str) -> str:
    return f"{value}\n[dim]{law}[/dim]" if law else value
